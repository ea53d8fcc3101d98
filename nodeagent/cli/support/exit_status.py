"""Exit statuses of commands. This module imports nothing, so that commands start fast."""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_DIFFERENCE = 3
EXIT_REFUSED = 4
