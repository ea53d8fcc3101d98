"""One pod through all managers: the node's capacity, hints, merge, allocation; and the invariants of what was promised.

managers.py is what the rest of the agent calls. Nothing here knows when a pod comes or what its cgroups are.
"""
