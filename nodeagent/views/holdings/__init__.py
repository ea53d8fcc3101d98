"""Allocations of pods, as commands show them. There is one module for each resource, and by_resource.py combines them."""
