"""systemd's domain: pinned units, with records of their original settings, and their device rules."""
