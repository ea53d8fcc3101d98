"""Ways in which the agent reports its state: logs, metrics, problems and APIs."""
