"""Resource claims: the devices of a node in terms of dynamic resource allocation (DRA), CEL selectors, and ways to meet claims.

Loaded for pods with claims, and to write ResourceSlices. The managers choose CPUs and memory among those that a claim allows.
"""
