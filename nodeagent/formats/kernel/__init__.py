"""Content of /sys, /proc and cgroup files: raw samples, and the machine and cgroup values derived from the samples."""
