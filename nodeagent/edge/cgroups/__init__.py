"""Access to cgroup v2: reading, changing and watching the pods' cgroups, and entering a cgroup."""
