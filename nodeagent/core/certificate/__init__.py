"""The verdict on one run of a command: thresholds of disturbances, and the disturbances that exceed them."""
