"""Host settings that keep interrupts and the host's own processes off exclusive CPUs. They are recorded, changed, and later restored."""
