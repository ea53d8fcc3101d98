"""The pods' launcher: starts containers' processes in their cgroups and outlives the agent (python -m nodeagent.launcher).

It imports only the standard library, nothing else of nodeagent, and almost never changes, so that an upgrade of the agent leaves it
running.
It knows processes, not pods. Its records are also on disk, so that it finds every process again after a crash, restart or upgrade.
"""
