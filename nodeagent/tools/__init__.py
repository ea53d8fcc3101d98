"""Side tools, each with all its parts in one package. Only the command line imports them."""
