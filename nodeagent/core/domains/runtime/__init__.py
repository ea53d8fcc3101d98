"""Pods and containers of a container runtime: their requests, their allocations, and the answers to the runtime.

NRI's encoding is in formats/runtime, the socket in edge/runtime/nri.py, and the choice of CPUs in core/admission.
"""
