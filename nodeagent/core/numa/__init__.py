"""NUMA hints, their merge into one, sets of nodes that have enough of everything, and the topology manager's policies.

Knows no resource: CPUs and memory themselves belong in core/resources/cpu and core/resources/memory.
"""
