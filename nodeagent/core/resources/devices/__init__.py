"""The device manager: allocation of devices as extended resources, by the rules of kubelet's device manager.

This package is loaded only if the configuration lists devices, or if a device plugin has registered.
"""
