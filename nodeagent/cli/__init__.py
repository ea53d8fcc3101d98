"""Command line. Only this package prints and sets exit statuses.

main.py runs a command, parser.py parses its arguments, commands/ contains the commands, and support/ contains the code that commands share.
"""
