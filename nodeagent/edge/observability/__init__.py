"""Ways in which the agent publishes information about itself: the metrics endpoint and the journal."""
