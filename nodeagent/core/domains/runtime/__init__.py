"""Pods and containers of a container runtime: decisions on their requests, and the agent's answers to the runtime.

formats/runtime encodes and decodes NRI's messages, edge/runtime/nri.py has the socket, and core/admission chooses the CPUs.
"""
