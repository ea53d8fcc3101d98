"""Access to everything outside the program: /sys, cgroups, files, sockets, systemd, kernel events. Each module accesses one of these.

Edges make no decisions and don't log.
"""
