"""Jobs: processes that request CPUs, and the limits on the jobs of each user."""
