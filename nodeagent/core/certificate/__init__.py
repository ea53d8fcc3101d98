"""The verdict on one run of a command: whether other activity on the machine disturbed the run, by thresholds for each kind of
disturbance.
"""
