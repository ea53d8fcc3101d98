"""`nodeagent explain`: a decision as a document and as text, what was missing, and what would help."""
