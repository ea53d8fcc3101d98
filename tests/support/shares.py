"""The share of examples that a run tries: a quarter, which rotates with the commit, or all of them with `--all`.

tests/conftest.py chooses the profile of Hypothesis, which tells the share to all functions here.
"""

import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

QUARTERS = 4
WHOLE = 100
"""Examples of a property that names no number, in a run with all examples."""


@cache
def quarter_of_commit() -> int:
    """Return the number of the quarter that belongs to the current commit, the same on every machine. It is 0 without git."""
    folder = Path(__file__).parents[1]
    if shutil.which("git") is None:
        return 0
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False)
    return int(found.stdout.strip() or "0", 16) % QUARTERS


def share_of(examples: int) -> int:
    """Return how many of a property's examples this run tries."""
    return max(1, examples * settings.default.max_examples // WHOLE)


def share(of: Sequence[T]) -> Sequence[T]:
    """Return the cases that this run tries: all, or every fourth from the commit's quarter on."""
    return of if settings.default.max_examples >= WHOLE else of[quarter_of_commit() :: QUARTERS]
