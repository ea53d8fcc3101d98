"""From promises to cgroups: the desired values of each cgroup, the order of the writes, and the consequences of a failed write.

This package contains neither the files' notation (formats/kernel) nor the file access (edge/cgroups/cgroupfs).
"""
