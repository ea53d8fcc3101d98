"""The code of CPU plugins."""
