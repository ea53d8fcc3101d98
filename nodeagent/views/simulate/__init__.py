"""`nodeagent simulate`: pods and scenarios decided on a node that may not exist, as documents and as text."""
