"""From files to a running node and back: startup, recovery, reload, release."""
