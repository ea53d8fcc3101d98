"""The memory manager: kubelet's policies None and Static, what each NUMA node has left, and from which nodes memory comes.

Knows nothing of CPUs, nor of the cgroup files that bind memory to nodes.
"""
