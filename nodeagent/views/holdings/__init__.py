"""Allocations of pods as shown to users: one module for each resource, and by_resource.py, which combines them."""
