"""Access to the container runtime (by NRI) and to this node's kubelet."""
