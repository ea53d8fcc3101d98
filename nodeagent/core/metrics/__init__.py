"""Metrics: names, types, labels and help texts, changes as data, and their totals.

Not here: the text that Prometheus reads (edge/observability/metrics.py), and counting (daemon/reports/metrics_recorder.py).
"""
