"""Output that the agent makes about itself: the metrics endpoint and the journal."""
