"""Admission of a pod by all managers (node capacity, hints, merge, allocation), resizes, and the invariants of allocations.

managers.py admits and removes pods. This package decides neither when a pod comes nor what its cgroups contain.
"""
