"""Metrics: their names, types, labels and help texts, the changes of their values, and the totals.

edge/observability/metrics.py makes the text for Prometheus, and daemon/reports/metrics_recorder.py counts for the agent.
"""
