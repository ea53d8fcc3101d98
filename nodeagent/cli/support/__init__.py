"""Code that commands share: options, files, access to nodes, trial decisions, and output."""
