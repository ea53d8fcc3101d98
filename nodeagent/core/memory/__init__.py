"""The memory manager: kubelet's policies None and Static, what each NUMA node has left, and from which nodes memory comes."""
