"""Processes of the host: their CPUs and cgroups, the owners of jobs, and the socket of the launcher."""
