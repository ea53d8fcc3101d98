"""Output of `nodeagent simulate`: decisions on pods and scenarios for a node that may not exist, as documents and as text."""
