"""The memory manager: kubelet's policies None and Static, the free memory of each NUMA node, and the choice of nodes.

This package depends neither on CPUs nor on cgroup files.
"""
