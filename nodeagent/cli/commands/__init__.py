"""One module per command, with `add_arguments` and `run`. Large commands have a second module, which is imported when the command runs."""
