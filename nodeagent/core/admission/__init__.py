"""Admission of pods (check of the node's capacity, NUMA hints, their merge, allocation), resizes, and invariants of the allocations.

managers.py admits and removes pods. Other packages decide when a pod is admitted, and compute the values of cgroups.
"""
