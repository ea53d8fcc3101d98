"""The CPU manager: kubelet's policies none and static, their options, which CPUs a container gets and what comes back.

A new option: options.py names and checks it, manager.py hands it to assignment.py or distribution.py, which implement it.
Memory, cgroups and files are none of its business.
"""
