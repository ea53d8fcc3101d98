"""Resources that are allocated to pods, one package each: CPUs, memory, devices, claims. Only the package `claims` imports other resources.
Most code outside of these packages uses resources only through the contract in resource.py.
"""
