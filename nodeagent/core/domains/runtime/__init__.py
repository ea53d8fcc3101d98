"""Pods and containers of a container runtime: their requests, the holders of allocations, and the answers to the runtime.

Not here: NRI's encoding (formats/runtime), the socket (edge/runtime/nri.py), and the choice of CPUs (core/admission).
"""
