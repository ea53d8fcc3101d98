"""NUMA hints, their merge into one hint, the search for sets of nodes with enough resources, and the policies of the topology manager.

This package names no specific resource. Resources are in core/resources.
"""
