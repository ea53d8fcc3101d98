"""Scenarios replayed by `nodeagent simulate`."""
