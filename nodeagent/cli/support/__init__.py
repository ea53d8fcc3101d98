"""Code that commands share: options, files, the state of nodes, decisions that are tried out, and output."""
