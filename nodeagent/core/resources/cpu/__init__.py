"""The CPU manager: kubelet's policies none and static with their options. This package decides which CPUs a container gets, keeps and
releases.

options.py declares and checks the options. manager.py passes them to assignment.py or distribution.py, which implement them.
"""
