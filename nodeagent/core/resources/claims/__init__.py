"""Resource claims: the node's devices for dynamic resource allocation (DRA), CEL selectors, and ways to meet claims.

This package is loaded for pods with claims, and to write ResourceSlices. The managers choose among the CPUs and memory permitted by a
claim.
"""
