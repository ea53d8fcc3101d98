"""The agent's own domain: the cgroups below the pods' cgroup."""
