"""A container runtime's domain: its calls, the connection to it, and the registry of its containers."""
