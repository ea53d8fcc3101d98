"""The selected node of a command: the options that select the node, its state, its observed cgroups and processes, and trial decisions."""
