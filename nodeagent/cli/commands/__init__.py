"""Commands, each in a module with `add_arguments` and `run`. A large command has a second module, which is imported only when the command
runs.
"""
