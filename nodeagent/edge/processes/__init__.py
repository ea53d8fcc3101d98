"""Access to processes: the host's processes with their CPUs and cgroups, the owners of jobs, and the launcher."""
