"""The verdict on one run of a command: thresholds, and the disturbances that exceed them."""
