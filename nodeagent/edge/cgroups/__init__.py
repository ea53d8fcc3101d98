"""cgroup v2: reading and writing the tree, entering a cgroup, watching it."""
