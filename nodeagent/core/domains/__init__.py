"""Contract of the domains, and decisions of the domain of a container runtime. A domain is the only program that writes certain cgroups."""
