"""Files on disk: state, manifests, and what containers are told."""
