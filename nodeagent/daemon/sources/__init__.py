"""Sources of pods other than jobs and container runtimes: the manifest directory."""
