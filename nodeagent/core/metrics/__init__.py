"""Metrics: their names, types, labels and help texts, the changes that decisions make, and the totals.

edge/observability/metrics.py formats the totals for Prometheus. daemon/reports/metrics_recorder.py counts the events of the agent.
"""
