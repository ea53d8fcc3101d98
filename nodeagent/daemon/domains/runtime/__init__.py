"""Domain of a container runtime: the calls and the connection of the runtime, and the registry of its containers."""
