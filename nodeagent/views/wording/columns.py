"""Layout of text in columns with a limited total width. Long cells are broken at commas and spaces, and never truncated.

Unprintable characters are escaped, so that no text can control a terminal.
"""

from collections.abc import Sequence
from itertools import zip_longest

from nodeagent.errors import printable

GAP = "  "
_MIN_WIDTH = 8
"""Minimum width, in characters, to which a column can be narrowed."""


def format_table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Lay out rows of equal length and return all lines. For the arguments, see `format_rows`."""
    return [line for block in format_rows(rows, width) for line in block]


def format_rows(rows: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Lay out rows of equal length and return the lines of each row.

    Args:
        rows: the cells of each row. The first row may be a heading.
        width: the limit on a line's length. Lines are longer if columns would need less than 8 characters. None means no limit.
    """
    if not rows:
        return []
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    if width is not None:
        room = width - len(GAP) * (len(widths) - 1)
        # the widest column is narrowed, at most to the width of the second widest
        while sum(widths) > room and max(widths) > _MIN_WIDTH:
            widest = widths.index(max(widths))
            second = sorted((*widths, _MIN_WIDTH))[-2]
            excess = sum(widths) - room
            widths[widest] -= min(excess, max(1, widths[widest] - max(second, _MIN_WIDTH)), widths[widest] - _MIN_WIDTH)
    laid = []
    for row in rows:
        cells = [break_text(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines = zip_longest(*cells, fillvalue="")
        laid.append(
            [GAP.join(f"{part:<{width}}" for part, width in zip(line, widths, strict=True)).rstrip() for line in lines]
        )
    return laid


def fit_lines(text: str, width: int | None) -> str:
    """Break each line that is longer than the width. Without a width, the text stays unchanged."""
    return "".join(f"{part}\n" for line in text.splitlines() for part in break_text(line, width))


def break_text(text: str, width: int | None) -> list[str]:
    """Break a text at line ends, and after commas, spaces, slashes and hyphens. If a part is too long, break it in the middle of a word.

    Lines after the first have the indentation of the first line and two more blanks. Without a width, the text is broken only at line ends.
    """
    if text.isprintable() and (width is None or len(text) <= width):
        return [text]
    indent = " " * (len(text) - len(text.lstrip(" ")))
    first, *rest = map(printable, text.split("\n"))
    lines = []
    for line in (first, *(f"{indent}  {line}" for line in rest)):
        left = line
        while width is not None and len(left) > width:
            at = _find_break(left, width, len(indent) + 2)
            lines.append(left[:at].rstrip(" "))
            left = left[at:].lstrip(" ")
            if width > len(indent) + 8:
                left = f"{indent}  {left}"
        lines.append(left)
    return lines


def _find_break(text: str, width: int, least: int) -> int:
    """Return the index at which to break a text, which is greater than `least` and at most `width`. Spaces are preferred, then commas, then
    slashes and hyphens.
    """
    for ends in (" ", ",", "/-"):
        at = max(text.rfind(end, least, width + (end == " ")) for end in ends)
        if at > least:
            return at + (text[at] != " ")
    return width
