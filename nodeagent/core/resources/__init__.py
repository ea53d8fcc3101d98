"""Resources that pods can be given, one package each: CPUs, memory, devices, claims. None knows another.

The rest of core knows them by the contract in core/resources/resource.py.
"""
