"""Output when a standard stream fails: as much as possible, and never an error of Python's own."""

import os
import sys
from typing import TextIO


def write_error(text: str) -> None:
    """Report what is wrong; if nobody can read it, only the exit status shows it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard_output(sys.stderr)


def discard_output(stream: TextIO) -> None:
    """Discard what is still buffered: python would report another error when it flushes at exit, with a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
