"""Code that commands share: options, files, the state of nodes, trial decisions, and output."""
