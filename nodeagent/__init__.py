"""Pins pods to whole CPUs close to their memory on bare-metal Linux, with kubelet's decisions and without Kubernetes."""

__version__ = "0.1.0"
