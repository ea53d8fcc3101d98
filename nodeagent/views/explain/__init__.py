"""`nodeagent explain`: a decision as a document and as text, what was short, and what would help."""
