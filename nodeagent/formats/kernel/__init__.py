"""What /sys, /proc and cgroup files say: raw samples first, then the machine and cgroup values made of them."""
