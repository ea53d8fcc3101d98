"""From promises to cgroups: the values that each cgroup should have, the order of the writes, and the consequences of a failed write.

The notation of the files is in formats/kernel, and the file access in edge/cgroups/cgroupfs.
"""
