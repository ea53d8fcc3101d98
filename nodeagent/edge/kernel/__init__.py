"""Files and events of the kernel outside of cgroups: /sys, /proc, tracefs, uevents, interrupts, kernel threads."""
