"""NUMA hints, their merge into one, the search for sets of nodes with enough resources, and the topology manager's policies.

Knows no resource. Those are in core/resources.
"""
