"""Device plugins: their registration, their devices, and the calls that allocate devices."""
