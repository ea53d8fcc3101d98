"""The memory manager: kubelet's policies None and Static, the accounting of each NUMA node's memory, and the choice of nodes.

This package imports nothing about CPUs or cgroup files.
"""
