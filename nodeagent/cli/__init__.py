"""The only place that prints and sets exit codes. main.py runs a command line, which parser.py parses; commands/ has the commands,
support/ what they share.
"""
