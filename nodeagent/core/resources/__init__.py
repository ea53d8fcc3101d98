"""Resources that are allocated to pods, one package each: CPUs, memory, devices, claims. Only the package for claims imports other
resources. The rest of core accesses resources by the contract in core/resources/resource.py.
"""
