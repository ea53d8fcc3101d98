"""cgroup v2: reading and writing the tree of cgroups, entering a cgroup, and watching the tree."""
