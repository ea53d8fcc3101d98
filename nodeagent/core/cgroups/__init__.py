"""From promises to cgroups: the values that each cgroup should have, the order in which they are written, and what to do after a failed
write.

formats/kernel contains the notation of cgroup files, and edge/cgroups/cgroupfs reads and writes them.
"""
