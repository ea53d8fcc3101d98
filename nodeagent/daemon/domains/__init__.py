"""Domains as the agent runs them, one package for each owner of cgroups: the agent, systemd, a container runtime, jobs."""
