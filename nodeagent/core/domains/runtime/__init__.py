"""Pods and containers that a container runtime runs: what they ask for, who of them holds what, and what to answer the runtime.

Not here: NRI's bytes (formats/runtime), the socket (edge/runtime/nri.py), and who gets which CPUs (core/admission).
"""
