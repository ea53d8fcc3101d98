"""Sources of pods: the manifest directory."""
