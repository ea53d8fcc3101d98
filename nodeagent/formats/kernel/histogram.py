"""The kernel's text of a histogram trigger (`events/*/*/hist`), keys and sums. Knows no event."""

import re
from collections.abc import Sequence

from msgspec import Struct

_MAX_DIGITS = 20
"""Of a 64-bit number."""
_NAME_BYTES = 16
"""Of a task's name with what it is padded with (TASK_COMM_LEN): whatever it contains, its end is known."""
_TOTAL = re.compile(rb"Totals:\n    Hits: (\d{1,20})\n    Entries: (\d{1,20})\n    Dropped: (\d{1,20})\n")


class HistogramSyntaxError(ValueError):
    """The text is not what the kernel writes."""


class Row(Struct, frozen=True):
    keys: tuple[int, ...]
    """In the order of the trigger; of a task its id."""
    name: str
    """Of the task among the keys, when the row was made; empty: there is none."""
    hits: int
    sum: int
    """Of the value, modulo 2**64; 0: the trigger has none."""


class Histogram(Struct, frozen=True):
    rows: tuple[Row, ...]
    dropped: int
    """Events that had no room in the table."""


def parse_histogram(
    text: bytes, keys: Sequence[str], *, value: str | None = None, task: str | None = None
) -> Histogram:
    """Read the content of a file `hist` that has one trigger.

    Args:
        text: the content.
        keys: their names, in the trigger's order.
        value: what is summed up; None: hits are only counted.
        task: the key that is shown with the task's name (`.execname`).

    Raises:
        HistogramSyntaxError: it is something else.
    """
    total = next(reversed(tuple(_TOTAL.finditer(text))), None)
    at = text.find(b"\n\n")
    if total is None or at < 0:
        raise HistogramSyntaxError("it has no totals")
    row = _row_pattern(keys, value, task)
    rows, place = [], at + 2
    while match := row.match(text, place):
        rows.append(_row(match, keys, value, task))
        place = match.end()
    if text[place : total.start()].strip(b"\n"):
        shown = text[place : place + 100].decode(errors="backslashreplace")
        raise HistogramSyntaxError(f"it has {shown!r} where a row is expected")
    if len(rows) != int(total.group(2)):
        raise HistogramSyntaxError(f"it has {len(rows)} rows and reports {int(total.group(2))}")
    return Histogram(tuple(rows), int(total.group(3)))


def _row_pattern(keys: Sequence[str], value: str | None, task: str | None) -> re.Pattern[bytes]:
    number = rb" *(\d{1,%d})" % _MAX_DIGITS
    parts = [
        re.escape(key.encode()) + b":" + (rb" (.{%d})\[%s\]" % (_NAME_BYTES, number) if key == task else number)
        for key in keys
    ]
    summed = rb"" if value is None else rb" +" + re.escape(value.encode()) + b":" + number
    return re.compile(rb"\{ " + b", ".join(parts) + rb" \} hitcount:" + number + summed + b"\n", re.DOTALL)


def _row(match: re.Match[bytes], keys: Sequence[str], value: str | None, task: str | None) -> Row:
    fields = list(match.groups())
    name = "" if task is None else fields.pop(keys.index(task)).rstrip(b" ").decode(errors="backslashreplace")
    numbers = [int(field) for field in fields]
    count = len(keys)
    return Row(tuple(numbers[:count]), name, numbers[count], 0 if value is None else numbers[count + 1])
