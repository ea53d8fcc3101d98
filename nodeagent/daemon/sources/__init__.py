"""Source of pods in manifest files. Jobs and container runtimes, the other sources, are in their domains."""
