"""Domains at run time, with one package for each owner of cgroups: the agent, systemd, a container runtime, jobs."""
