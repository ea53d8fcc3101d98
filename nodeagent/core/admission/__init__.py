"""Admission of pods by all managers (node capacity, hints, merge, allocation), resizes, and the invariants of allocations.

managers.py admits and removes pods. Other packages decide when a pod is admitted, and which values cgroups get.
"""
