"""The CPU manager: kubelet's policies none and static, their options, which CPUs a container gets and what comes back.

A new option: options.py names and checks it, assignment.py or distribution.py follow it.
"""
