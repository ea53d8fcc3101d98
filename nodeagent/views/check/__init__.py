"""`nodeagent check`: checks whether a node is fit for pinning, one function per check."""
