"""Output of `nodeagent simulate`, as documents and as text: trial decisions on pods, or replayed scenarios. The node need not exist."""
