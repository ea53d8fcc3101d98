"""One pod through all managers: the node's capacity, hints, merge, allocation; and the invariants of what was promised.

managers.py admits and removes pods. Nothing here knows when a pod comes or what its cgroups are.
"""
