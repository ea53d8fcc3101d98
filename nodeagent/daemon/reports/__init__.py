"""Reports of the agent's state: logs, metrics, problems and APIs."""
