"""Code and processes of others that decisions ask: CPU plugins and device plugins."""
