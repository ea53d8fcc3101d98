"""A further resource, as somebody else would add it: one folder, and one line of registration."""
