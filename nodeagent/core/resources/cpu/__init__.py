"""The CPU manager: kubelet's policies none and static with their options. This package decides which CPUs a container gets and releases.

A new option is declared and checked in options.py. manager.py passes the option to assignment.py or distribution.py, which implement the
option.
"""
