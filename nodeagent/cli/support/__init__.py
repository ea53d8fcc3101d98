"""What commands share: which node and which files they are about, what is known of it, and how they print."""
