"""Domains of a running agent, one package for each owner of cgroups: the agent, systemd, a container runtime, jobs."""
