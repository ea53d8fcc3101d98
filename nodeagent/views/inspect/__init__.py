"""`nodeagent inspect`: the document of a node, its text, and the live view."""
