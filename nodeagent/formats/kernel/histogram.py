"""Parser for the text of a histogram trigger (`events/*/*/hist`) of any event."""

import re
from collections.abc import Sequence

from msgspec import Struct

_MAX_DIGITS = 20
"""Maximum number of digits of a 64-bit number."""
_NAME_BYTES = 16
"""Length in bytes of a task name in a histogram, padded with blanks (TASK_COMM_LEN). The parser takes exactly this many bytes as the name,
because a name may contain any characters.
"""
_TOTAL = re.compile(rb"Totals:\n    Hits: (\d{1,20})\n    Entries: (\d{1,20})\n    Dropped: (\d{1,20})\n")


class HistogramSyntaxError(ValueError):
    """The text of a histogram doesn't have the kernel's format."""


class Row(Struct, frozen=True):
    keys: tuple[int, ...]
    """Values of the keys, in the trigger's order. For a task, the value is the task's ID."""
    name: str
    """Name that the row's task had when the row was created. Empty if none of the keys is a task."""
    hits: int
    sum: int
    """Sum of the value modulo 2**64. 0 if the trigger has no value."""


class Histogram(Struct, frozen=True):
    rows: tuple[Row, ...]
    dropped: int
    """Number of events that didn't fit into the table."""


def parse_histogram(
    text: bytes, keys: Sequence[str], *, value: str | None = None, task: str | None = None
) -> Histogram:
    """Parse the content of a `hist` file with one trigger.

    Args:
        text: the content.
        keys: the names of the keys in the trigger's order.
        value: the name of the summed value. None means that the trigger only counts hits.
        task: the key that is shown with the task's name (`.execname`).

    Raises:
        HistogramSyntaxError: the text is malformed.
    """
    total = next(reversed(tuple(_TOTAL.finditer(text))), None)
    at = text.find(b"\n\n")
    if total is None or at < 0:
        raise HistogramSyntaxError("it has no totals")
    number = rb" *(\d{1,%d})" % _MAX_DIGITS
    parts = [
        re.escape(key.encode()) + b":" + (rb" (.{%d})\[%s\]" % (_NAME_BYTES, number) if key == task else number)
        for key in keys
    ]
    summed = rb"" if value is None else rb" +" + re.escape(value.encode()) + b":" + number
    row = re.compile(rb"\{ " + b", ".join(parts) + rb" \} hitcount:" + number + summed + b"\n", re.DOTALL)
    rows, place, count = [], at + 2, len(keys)
    while match := row.match(text, place):
        fields = list(match.groups())
        name = "" if task is None else fields.pop(keys.index(task)).rstrip(b" ").decode(errors="backslashreplace")
        numbers = [int(number) for number in fields]
        rows.append(Row(tuple(numbers[:count]), name, numbers[count], 0 if value is None else numbers[count + 1]))
        place = match.end()
    if text[place : total.start()].strip(b"\n"):
        shown = text[place : place + 100].decode(errors="backslashreplace")
        raise HistogramSyntaxError(f"it contains {shown!r} where a row is expected")
    if len(rows) != int(total.group(2)):
        raise HistogramSyntaxError(f"it has {len(rows)} rows, but its totals count {int(total.group(2))}")
    return Histogram(tuple(rows), int(total.group(3)))
