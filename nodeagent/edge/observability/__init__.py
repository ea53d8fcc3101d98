"""Output of metrics over HTTP, and of log entries to the journal."""
