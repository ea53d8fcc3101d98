"""NUMA hints, their merge into one hint, the search for sets of nodes with enough resources, and the topology manager's policies.

This package names no specific resource. The resources are in core/resources.
"""
