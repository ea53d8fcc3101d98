"""The launcher (python -m nodeagent.launcher) starts the processes of containers in their cgroups, and outlives the agent.

The launcher imports only the standard library and rarely changes, so it can keep running while the agent is upgraded. From records on disk,
a new launcher finds its processes again after a crash, restart or upgrade.
"""
