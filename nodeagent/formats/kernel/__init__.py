"""Content of /sys, /proc and cgroup files. This package has raw samples, and derives the values of the machine and its cgroups from
them.
"""
