"""Encoders and decoders of allocations in the state file: each pod's holdings, and the node's totals and free amounts. There is one module
for each resource.
"""
