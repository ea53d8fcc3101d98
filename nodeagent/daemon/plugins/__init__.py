"""Device plugins: registration, devices, allocation."""
