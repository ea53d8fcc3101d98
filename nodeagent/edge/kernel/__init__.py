"""The kernel's files and events outside of cgroups: /sys, /proc, tracefs, uevents, interrupts, threads."""
