"""Resource claims: the devices of a node as dynamic resource allocation describes them, CEL selectors, and which a claim may have.

Loaded for pods with claims, and to print ResourceSlices. CPUs and memory are chosen by their managers, among those that a claim allows.
"""
