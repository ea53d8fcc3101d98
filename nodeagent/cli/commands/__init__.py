"""One module per command, with `add_arguments` and `run`; large ones have a second module, imported once they run."""
