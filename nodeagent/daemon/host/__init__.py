"""Host settings that keep the host's work off exclusive CPUs: read, recorded, written, restored."""
