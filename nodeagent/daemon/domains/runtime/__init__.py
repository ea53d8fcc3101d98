"""Domain of a container runtime: the connection to the runtime, the runtime's calls, and the agent's registry of its containers."""
