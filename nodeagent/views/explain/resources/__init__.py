"""What an explanation says of one resource: a module for each resource, and by_resource.py, which combines all of them."""
