"""The container runtime (NRI) and the kubelet of this node."""
