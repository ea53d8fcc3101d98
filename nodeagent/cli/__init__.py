"""The command line, the only package that prints and sets exit codes. main.py runs a command, parser.py parses its arguments, commands/
contains the commands, and support/ contains the code that commands share.
"""
