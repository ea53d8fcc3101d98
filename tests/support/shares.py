"""The share of examples that a run tries: all of them with `--all`, else a quarter, which rotates with the commit.

tests/conftest.py chooses the quarter.
"""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

QUARTERS = 4
quarter: int | None = None
"""Number of the quarter that this run tries. None means that it tries everything."""


def quarter_of_commit() -> int:
    """Return the number of the quarter that belongs to the current commit, the same on every machine. It is 0 without git."""
    folder = Path(__file__).parents[1]
    if shutil.which("git") is None:
        return 0
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False)
    return int(found.stdout.strip() or "0", 16) % QUARTERS


def share_of(examples: int) -> int:
    """Return how many of a property's examples this run tries."""
    return examples if quarter is None else max(1, examples // QUARTERS)


def share(of: Sequence[T]) -> Sequence[T]:
    """Return the cases that this run tries: all, or every fourth."""
    return of if quarter is None else of[quarter::QUARTERS]
