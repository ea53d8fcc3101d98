"""systemd's domain: pinned units, the original settings of these units, and their devices."""
