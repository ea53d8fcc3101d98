"""systemd's units that pods stand for: what they had before, and their devices."""
