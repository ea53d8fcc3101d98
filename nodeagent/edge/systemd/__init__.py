"""systemd: the service manager that runs the agent, and the properties of its units."""
