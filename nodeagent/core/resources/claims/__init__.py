"""Resource claims: the node's devices for dynamic resource allocation (DRA), CEL selectors, and ways to meet claims.

Loaded for pods with claims, and to write ResourceSlices. Among the CPUs and memory that a claim allows, the managers choose.
"""
