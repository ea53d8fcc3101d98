"""Output of `nodeagent check`, which tells whether a node is suitable for pinning. Each check is one function."""
