"""The pods' launcher: starts containers' processes in their cgroups and outlives the agent (python -m nodeagent.launcher).

It imports the standard library only, nothing else of nodeagent, and almost never changes: an upgrade of the agent leaves it running. It
knows processes, not pods. What it knows is also on disk: after a crash, restart or upgrade, it finds every process again.
"""
