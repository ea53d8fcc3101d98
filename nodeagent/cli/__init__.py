"""The only place that prints and sets exit codes. main.py runs a command line, which command_line.py parses; commands/ has the commands,
support/ what they share.
"""
