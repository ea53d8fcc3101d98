"""Metrics: names, types, labels and help texts, changes as data, and their totals.

This package contains neither the text that Prometheus reads (edge/observability/metrics.py) nor the counting
(daemon/reports/metrics_recorder.py).
"""
