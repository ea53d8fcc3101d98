"""Types of numbers and times for argparse, with errors that state the allowed range."""

import argparse
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.formats.syntax.durations import DurationSyntaxError, parse_duration_ns
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


MOST_REPETITIONS = 10_000


def repetitions(text: str) -> int:
    """Parse a number of runs of a command.

    Raises:
        argparse.ArgumentTypeError: the text isn't a whole number from 1 to 10000.
    """
    number = whole_number(text)
    if number > MOST_REPETITIONS:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {MOST_REPETITIONS}: start several jobs")
    return number


def seconds(low: float, high: float) -> Callable[[str], float]:
    """Return a parser for numbers of seconds from `low` to `high`, which raises argparse.ArgumentTypeError for other texts."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if low <= float(text) <= high:
                return float(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {low:g} to {high:g}")

    return read


LONGEST_SPAN_SECONDS = 7 * 24 * 3600.0


def time_span(text: str) -> float:
    """Parse a time such as 30m into seconds.

    Raises:
        argparse.ArgumentTypeError: the text isn't a time from a second to 7 days.
    """
    with suppress(DurationSyntaxError):
        found = parse_duration_ns(text) / 1e9
        if 1 <= found <= LONGEST_SPAN_SECONDS:
            return found
    raise argparse.ArgumentTypeError(f"{text!r} is not a time from 1s to 168h, such as 30m")


def begin_of_span(text: str) -> datetime:
    """Parse a time of the local clock. Without a day, the text means the next occurrence of this time. `now` means the current time.

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
    """Check a quantity above 0, and return its text unchanged.

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
