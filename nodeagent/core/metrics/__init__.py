"""Metrics: names, types, labels and help texts, changes of their values as data, and the totals.

The text that Prometheus reads is made in edge/observability/metrics.py, and the agent counts in daemon/reports/metrics_recorder.py.
"""
