"""The configuration: parsing and formatting of a Config, kubelet's fields, and the part of a Config that the agent
publishes.
"""
