"""The memory manager: kubelet's policies None and Static, the free memory of each NUMA node, and the choice of nodes.

Knows neither CPUs nor the cgroup files that bind memory to nodes.
"""
