"""Reports of the agent: logs, metrics, problems, and the APIs that it serves."""
