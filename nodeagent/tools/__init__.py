"""Secondary tools, with one package for each tool. Only the command line imports them."""
