"""NUMA hints, their merge into one, sets of nodes that have enough of everything, and the topology manager's policies.

Knows resources only through the interface of their managers (resource_manager.py): CPUs and memory themselves belong in
core/resources/cpu and core/resources/memory.
"""
