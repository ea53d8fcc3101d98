"""Access to everything outside of the program: /sys, cgroups, files, sockets, systemd, kernel events. Each module accesses one of these.

Modules in this package make no decisions and don't log.
"""
