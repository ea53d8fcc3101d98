"""What watches the agent: the metrics exposition and the journal."""
