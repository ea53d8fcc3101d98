"""Content of /sys, /proc and cgroup files. This package defines samples of these files, and derives the machine and the values of cgroups
from samples.
"""
