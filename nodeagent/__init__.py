"""Pins pods to whole CPUs next to their memory on bare-metal Linux, with kubelet's decisions and without Kubernetes."""

__version__ = "0.1.0"
