"""The device manager: which devices of a countable resource a container gets, by the rules of kubelet's.

Loaded only where the configuration names devices, or a device plugin has registered. Knows no CPUs and no memory.
"""
