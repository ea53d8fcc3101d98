"""The device manager: allocation of devices of extended resources, by the rules of kubelet's device manager.

Loaded only if the configuration names devices, or a device plugin has registered.
"""
