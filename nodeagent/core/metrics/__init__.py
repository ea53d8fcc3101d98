"""What is counted: names, types, labels and help texts, changes as data, and their totals.

Not here: the text that Prometheus reads (edge/metrics.py), and when the agent counts what (daemon/metrics_recorder.py).
"""
