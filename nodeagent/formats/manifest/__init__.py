"""Pod manifests: a v1 Pod to Pod and back, the API server's rules, and what a container's process is given."""
