"""Access to things outside the program, one thing per module: /sys, cgroups, files, sockets, systemd, kernel events.

Edges make no decisions and don't log.
"""
