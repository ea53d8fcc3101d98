"""Numbers on the command line: argparse's types, whose errors say what is allowed."""

import argparse
from collections.abc import Callable
from contextlib import suppress


def whole_number(text: str) -> int:
    """Read a whole number above 0.

    Raises:
        argparse.ArgumentTypeError: it isn't one.
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def seconds(low: float, high: float) -> Callable[[str], float]:
    """Return a function that reads a number of seconds from `low` to `high`, and raises argparse.ArgumentTypeError for anything else."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= float(text) <= high:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {low:g} to {high:g}")

    return read
