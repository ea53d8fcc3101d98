"""What is still said when a standard stream takes no more: as much as can be, and never a complaint of Python's own."""

import os
import sys
from typing import TextIO


def complain(text: str) -> None:
    """Say what is wrong; where nobody can be told, the exit status says it alone."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Send what is still to be flushed nowhere: python would complain once more while it flushes at exit, with a status of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
