"""The launcher (python -m nodeagent.launcher): starts the processes of containers in their cgroups, and outlives the agent.

The launcher imports only the standard library and rarely changes, so that it keeps running while the agent is upgraded. Records on disk
let it find its processes again after a crash, restart or upgrade.
"""
