"""Start, recovery, reload and release of a node."""
