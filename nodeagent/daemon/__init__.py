"""The composition root: builds the edges, owns the wake-ups and the one thread that decides, logs. No policy."""
