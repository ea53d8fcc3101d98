"""Output of `nodeagent inspect`: node, pods, containers and differences, as a document, as text and as a live display."""
