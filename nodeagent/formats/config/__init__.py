"""The configuration: a file to Config and back, kubelet's fields, and the part of it that the agent publishes."""
