"""Output of the agent about itself: the metrics endpoint and the journal."""
