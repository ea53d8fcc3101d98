"""The node that a command is about: options that select it, its state, its observed cgroups and processes, and decisions tried on it."""
