"""The configuration. This package parses and formats a Config, has the tables of kubelet's fields, and defines the part of a Config that
the agent publishes.
"""
