"""Settings of the host that leave exclusive CPUs alone: read, recorded, written, restored."""
