"""Explanations about one resource. There is one module for each resource, and by_resource.py combines them."""
