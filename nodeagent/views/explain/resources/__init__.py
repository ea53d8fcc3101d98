"""Parts of an explanation about one resource: a module for each resource, and by_resource.py, which combines them."""
