"""Whose cgroups containers are in, one package for each owner: systemd, a container runtime, jobs."""
