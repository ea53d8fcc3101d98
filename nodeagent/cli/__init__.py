"""The only place that prints and sets exit codes. main.py runs a command line, parser.py parses it, commands/ has the commands, and
support/ the code that commands share.
"""
