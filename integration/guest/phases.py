"""Prints what takes time and how long it took; knows nothing of what is done."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Print `title ... 3.2 s` on stderr, in two steps, so that a slow or hanging phase can be seen while it runs."""
    print(f"{title} ... ", end="", file=sys.stderr, flush=True)
    start = time.monotonic()
    try:
        yield
    except BaseException:
        print(f"failed after {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
        raise
    print(f"{time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
