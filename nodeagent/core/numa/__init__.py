"""NUMA hints, their merge into one hint, the search for sets of nodes with enough resources, and the topology manager's policies.

Knows no specific resource. The resources are in core/resources.
"""
