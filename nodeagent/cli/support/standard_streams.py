"""Output to standard streams that may fail. Python's own errors about a failure are suppressed."""

import os
import sys
from typing import TextIO


def write_error(text: str) -> None:
    """Write a message to stderr. If writing fails, only the exit status shows the error."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard_output(sys.stderr)


def discard_output(stream: TextIO) -> None:
    """Discard buffered output. Otherwise Python flushes it at exit, reports a second error and changes the exit status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
