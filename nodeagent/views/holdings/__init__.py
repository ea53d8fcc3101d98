"""How people are shown what pods hold: one module for each resource, and by_resource.py, which iterates all of them."""
