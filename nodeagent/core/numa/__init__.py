"""NUMA hints, their merge into one, sets of nodes that have enough of everything, and the topology manager's policies.

Knows of resources only that they have hints: what CPUs and memory are like is for core/cpu and core/memory.
"""
