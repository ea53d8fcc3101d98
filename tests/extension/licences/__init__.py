"""Counted licences, of the node or of its NUMA nodes (dongles)."""
