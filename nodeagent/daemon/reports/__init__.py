"""Reports of the agent: logs, metrics, problems, and the APIs of the agent."""
