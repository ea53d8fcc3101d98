"""Metrics: names, types, labels and help texts, changes as data, and their totals.

The text that Prometheus reads is made in edge/observability/metrics.py, and the agent counts in daemon/reports/metrics_recorder.py.
"""
