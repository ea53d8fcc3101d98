"""Resource claims: the node's devices for dynamic resource allocation (DRA), CEL selectors, and the search for devices that satisfy claims.

This package is loaded only for pods with claims, and to write ResourceSlices. Among the CPUs and memory that a claim permits, the
managers choose.
"""
