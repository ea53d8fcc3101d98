"""Resource claims: the node's devices for dynamic resource allocation (DRA), CEL selectors, and the search for devices that satisfy claims.

This package is loaded only for pods with claims, and to write ResourceSlices. A claim only limits the permitted CPUs and memory. The CPU
manager and the memory manager choose among them.
"""
