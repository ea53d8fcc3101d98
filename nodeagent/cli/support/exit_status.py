"""What commands say by their exit status. Imports nothing, so that whoever has to start fast may ask."""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_DIFFERENCE = 3
EXIT_REFUSED = 4
