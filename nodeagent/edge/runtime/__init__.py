"""A container runtime and the kubelet beside it: connections and calls. Knows no pod."""
