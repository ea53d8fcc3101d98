"""Pods' holdings and the node's accounts as JSON in the state file, with one module for each resource."""
