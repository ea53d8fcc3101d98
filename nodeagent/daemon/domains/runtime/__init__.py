"""A container runtime's containers: its calls, the connection to it, and what is known of it."""
