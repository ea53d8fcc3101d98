"""The configuration. This package parses and formats a Config, lists kubelet's fields, and defines the part of a Config that the agent
publishes.
"""
