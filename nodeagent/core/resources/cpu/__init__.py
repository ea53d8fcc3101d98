"""The CPU manager: kubelet's policies none and static, their options, which CPUs a container gets and which are released.

A new option: options.py names and checks it, manager.py passes it to assignment.py or distribution.py, which implement it. Memory, cgroups
and files don't belong here.
"""
