"""Number types for argparse, with errors that state the allowed range."""

import argparse
from collections.abc import Callable
from contextlib import suppress

from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.formats.syntax.quantity_words import explain_no_quantity


def whole_number(text: str) -> int:
    """Parse a whole number above 0.

    Raises:
        argparse.ArgumentTypeError: the text isn't such a number.
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


def seconds(low: float, high: float) -> Callable[[str], float]:
    """Return a parser for numbers of seconds from `low` to `high`, which raises argparse.ArgumentTypeError for other texts."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= float(text) <= high:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {low:g} to {high:g}")

    return read


def amount(text: str) -> str:
    """Return a quantity above 0 as it was given.

    Raises:
        argparse.ArgumentTypeError: the text isn't such a quantity.
    """
    try:
        given = Quantity.parse(text)
    except QuantitySyntaxError:
        raise argparse.ArgumentTypeError(f"{text!r}: {explain_no_quantity(text)}") from None
    if given.nano <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return text


def numa_node(text: str) -> str:
    """Return the number of a NUMA node as it was given.

    Raises:
        argparse.ArgumentTypeError: the text isn't a number from 0.
    """
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a NUMA node")
    return text
