"""Output of `nodeagent explain`: a decision as a document and as text, with the missing resources and the remedies."""
