"""Resources that are allocated to pods, one package each: CPUs, memory, devices, claims. Only claims import other resources. The rest of
core uses resources by the contract in core/resources/resource.py.
"""
