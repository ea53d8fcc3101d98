"""What commands share: the node and the files they are about, what is known about it, and how they print."""
