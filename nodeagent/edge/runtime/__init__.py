"""Access to the container runtime (NRI) and to the kubelet of this node."""
