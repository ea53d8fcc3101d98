"""Where pods come from: the manifest directory."""
