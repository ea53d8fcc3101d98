"""CPU plugins: loading their code, and calling it."""
