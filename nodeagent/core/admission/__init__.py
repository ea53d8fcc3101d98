"""Admission of pods by all managers (node capacity, hints, merge, allocation), resizes, and the invariants of allocations.

managers.py admits and removes pods. This package doesn't decide when pods are admitted, nor what their cgroups contain.
"""
