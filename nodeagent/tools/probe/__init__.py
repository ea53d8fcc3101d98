"""`nodeagent probe`: delays of threads on given CPUs, and the NUMA placement of containers' memory."""
