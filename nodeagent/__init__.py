"""Pins pods to whole CPUs and to the memory near these CPUs on bare-metal Linux. It decides as kubelet does, but needs no Kubernetes."""

__version__ = "0.1.0"
