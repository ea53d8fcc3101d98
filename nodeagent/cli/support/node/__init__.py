"""The node that a command is about: its options, its state, what is observed of it, and the decisions tried out on it."""
