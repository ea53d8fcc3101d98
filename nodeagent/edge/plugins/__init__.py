"""Loading and calling of CPU plugins."""
