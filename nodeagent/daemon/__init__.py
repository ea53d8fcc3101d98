"""The agent as a process: it builds the edges, wakes the deciding thread, and logs. This package makes no policy decisions."""
