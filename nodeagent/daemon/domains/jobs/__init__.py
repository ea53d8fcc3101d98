"""Jobs: processes that request CPUs, and the bounds of their users."""
