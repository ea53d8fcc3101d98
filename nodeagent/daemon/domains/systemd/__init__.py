"""systemd's domain: pinned units, their original settings, and their devices."""
