"""Types for numbers and times on the command line. They are used with argparse, and their errors state the allowed range."""

import argparse
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.formats.syntax.durations import DurationSyntaxError, parse_duration_ns
from nodeagent.formats.syntax.quantity_words import explain_no_quantity


def whole_number(text: str) -> int:
    """Parse a positive whole number.

    Raises:
        argparse.ArgumentTypeError: the text isn't such a number.
    """
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return number


MOST_REPETITIONS = 10_000


def repetitions(text: str) -> int:
    """Parse how often to run a command.

    Raises:
        argparse.ArgumentTypeError: the text isn't a whole number from 1 to 10000.
    """
    number = whole_number(text)
    if number > MOST_REPETITIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_REPETITIONS}: start several jobs")
    return number


def seconds(low: float, high: float) -> Callable[[str], float]:
    """Return a function that parses a number of seconds from `low` to `high`. For other texts, it raises argparse.ArgumentTypeError."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= float(text) <= high:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {low:g} to {high:g}")

    return read


LONGEST_SPAN_SECONDS = 7 * 24 * 3600.0


def time_span(text: str) -> float:
    """Parse a duration such as 30m, and return it in seconds.

    Raises:
        argparse.ArgumentTypeError: the text isn't a duration from a second to 7 days.
    """
    with suppress(DurationSyntaxError):
        found = parse_duration_ns(text) / 1e9
        if 1 <= found <= LONGEST_SPAN_SECONDS:
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is not a time from 1s to 168h, such as 30m")


def begin_of_span(text: str) -> datetime:
    """Parse a local time. Without a day, such as in `22:00`, the next occurrence of this time is meant. `now` is the current time.

    Raises:
        argparse.ArgumentTypeError: the text isn't such a time.
    """
    now = datetime.now().astimezone()
    if text == "now":
        return now
    with suppress(ValueError, OverflowError):
        return datetime.strptime(text, "%Y-%m-%dT%H:%M").astimezone()
    with suppress(ValueError):
        today = datetime.combine(now.date(), datetime.strptime(text, "%H:%M").time())  # noqa: DTZ007 - local time
        return next(at for days in range(3) if (at := (today + timedelta(days=days)).astimezone()) > now)
    raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 22:00 or 2026-11-29T22:00")


def amount(text: str) -> str:
    """Check that a text is a quantity above 0, and return it unchanged.

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
