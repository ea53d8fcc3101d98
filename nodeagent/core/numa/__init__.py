"""NUMA hints, their merge into one, sets of nodes that have enough of everything, and the topology manager's policies.

Of a resource it knows only what every manager of one offers (resource_manager.py): what CPUs and memory are like is for core/cpu and
core/memory.
"""
