"""`nodeagent probe`: measurement of thread delays on given CPUs, and the NUMA placement of containers' memory."""
