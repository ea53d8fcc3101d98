"""Start of the agent, recovery of its state, reload of its configuration, and release of a node."""
