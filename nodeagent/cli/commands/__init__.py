"""One module a command, with `add_arguments` and `run`; what is large has a second module, imported once it runs."""
