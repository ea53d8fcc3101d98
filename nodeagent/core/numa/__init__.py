"""NUMA hints, their merge into one hint, the search for sets of nodes with enough resources, and the topology manager's policies.

This package doesn't name any specific resource. The resources are in core/resources.
"""
