"""Exit statuses of commands. Imports nothing, so that fast starters can use it."""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_DIFFERENCE = 3
EXIT_REFUSED = 4
