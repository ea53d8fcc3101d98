"""Host settings that are kept off exclusive CPUs: read, recorded, written, restored."""
