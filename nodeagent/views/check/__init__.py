"""`nodeagent check`: what makes a node fit for pinning, one function per check."""
