"""Access to kernel files and events outside of cgroups: /sys, /proc, tracefs, uevents, interrupts, kernel threads."""
