"""Encoders and decoders of allocations in the state file, with a module for each resource. The allocations are those of each pod, and
node-wide records such as the free memory of NUMA nodes.
"""
