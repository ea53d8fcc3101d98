"""Access to the outside, one thing per module: /sys, cgroups, files, sockets, systemd, kernel events. Decides nothing, logs nothing."""
