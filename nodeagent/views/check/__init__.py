"""Output of `nodeagent check`: checks that a node is suitable for pinning, one function per check."""
