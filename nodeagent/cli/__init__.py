"""The only printing and the only exit codes. main.py runs a command line, which command_line.py understands; commands/ has the commands,
support/ what they share.
"""
