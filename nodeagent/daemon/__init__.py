"""The agent process: opens the edges, wakes the thread that makes the decisions, and writes the log. The decisions themselves are made in
core/.
"""
