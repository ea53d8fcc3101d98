"""Views of the resources that pods hold: one module per resource, and by_resource.py, which combines all of them."""
