"""`nodeagent probe`: how long threads on CPUs are held up, and on which NUMA nodes memory of containers lies."""
