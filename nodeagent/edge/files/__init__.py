"""Files on disk: state files, manifests and placement files."""
