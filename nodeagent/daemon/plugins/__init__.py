"""Device plugins: registration, lists of devices, and the calls that allocate devices."""
