"""The command line, the only package that prints and sets exit codes. main.py runs a command, parser.py parses its arguments, commands/
has the commands, and support/ has the code that commands share.
"""
