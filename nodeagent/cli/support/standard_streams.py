"""Output to standard streams for which writing may fail. Python's own error messages about such a failure are suppressed."""

import os
import sys
from typing import TextIO


def write_error(text: str) -> None:
    """Write a message to stderr. If writing fails, the error is ignored, and only the exit status tells that the command failed."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard_output(sys.stderr)


def discard_output(stream: TextIO) -> None:
    """Discard the buffered output of a stream that can't be written to. Otherwise, Python would flush it at exit, print a second error and
    change the exit status.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
