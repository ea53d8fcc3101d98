"""CPU plugins of the configuration: loading their code and calling it."""
