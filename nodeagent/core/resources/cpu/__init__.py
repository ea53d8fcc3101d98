"""The CPU manager: kubelet's policies none and static with their options. It decides which CPUs a container gets and releases.

To add an option, name and check it in options.py. manager.py passes the option to assignment.py or distribution.py, which implement it.
"""
