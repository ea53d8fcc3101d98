"""Access to files on disk: state files, manifests and placement files."""
