"""What `nodeagent probe` shows: how long threads on CPUs are held up, before and now, and on which NUMA nodes containers' memory lies."""
