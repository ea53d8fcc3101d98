"""Pod manifests: a v1 Pod to Pod and back, the API server's rules, and the arguments and environment of a container's process."""
