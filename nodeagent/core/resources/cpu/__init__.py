"""The CPU manager: kubelet's policies none and static with their options. This package decides which CPUs a container gets and releases.

Options are declared and checked in options.py. manager.py passes them to assignment.py or distribution.py, which implement them.
"""
