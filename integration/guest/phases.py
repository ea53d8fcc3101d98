"""Prints what takes time and how long it took; knows nothing of what is done."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_unfinished_line: list[object] = []  # the phase whose title stands at the end of the output, if any


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Print `title ... 3.2 s` on stderr, in two steps, so that a slow or hanging phase can be seen while it runs.

    Phases within each other, or in several threads, get lines of their own.
    """
    token = object()
    with _lock:
        _end_line()
        _write(f"{title} ... ")
        _unfinished_line.append(token)
    start = time.monotonic()
    result = "failed after "
    try:
        yield
        result = ""
    finally:
        with _lock:
            if _unfinished_line != [token]:
                _end_line()
                _write(f"{title} ... ")
            _unfinished_line.clear()
            _write(f"{result}{time.monotonic() - start:.1f} s\n")


def _end_line() -> None:
    if _unfinished_line:
        _unfinished_line.clear()
        _write("\n")


def _write(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)
