"""The only printing and the only exit codes. main.py finds the command; commands/ has them, support/ what they share."""
