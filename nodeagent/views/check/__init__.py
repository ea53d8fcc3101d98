"""Output of `nodeagent check`: checks whether a node is suitable for pinning, one function per check."""
