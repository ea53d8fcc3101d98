"""Content of /sys, /proc and cgroup files: raw samples first, then the machine and cgroup values made from them."""
