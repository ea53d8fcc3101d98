"""Access to systemd: messages to the service manager (sd_notify), and properties of units."""
