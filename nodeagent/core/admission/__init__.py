"""Admission of pods by all managers (node capacity, hints, merge, allocation), resizes, and the invariants of allocations.

managers.py admits and removes pods. The time of an admission and the values of cgroups are decided elsewhere.
"""
