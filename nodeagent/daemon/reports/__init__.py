"""What the agent reports: logs, metrics, problems, and what it serves."""
