"""One outside thing per module: /sys, cgroups, files, sockets, systemd, the kernel's events. Decides nothing, logs nothing."""
