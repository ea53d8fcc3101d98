"""Access to everything outside the process, one subject per module: /sys, cgroups, files, sockets, systemd, kernel events. This package
makes no decisions and logs nothing.
"""
