"""Node that a command is about: the options that select the node, its state, its observed cgroups and processes, and trial decisions."""
