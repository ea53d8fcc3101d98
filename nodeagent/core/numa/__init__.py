"""NUMA hints, the merge of hints into one, the search for sets of nodes with enough resources, and the topology manager's policies.

This package doesn't name any specific resource. The resources are in core/resources.
"""
