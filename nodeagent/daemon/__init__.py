"""The agent as a process: builds the edges, wakes the deciding thread, and logs. This package makes no policy decisions."""
