"""Text in columns within a width. Long cells are broken at commas and spaces and never truncated.

Unprintable characters are escaped, so that no text can control a terminal.
"""

from collections.abc import Iterator, Sequence

from nodeagent.errors import printable

GAP = "  "
_LEAST = 8
"""Minimum width of a column."""


def table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Lay out rows of equal length like `blocks`, as lines."""
    return [line for block in blocks(rows, width) for line in block]


def blocks(rows: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Lay out rows of equal length and return the lines of each row.

    Args:
        rows: cells; the first row may be a heading.
        width: the limit on a line's length, if every column can have 8 characters. None means unlimited.
    """
    if not rows:
        return []
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    if width is not None:
        widths = _shrink(widths, width - len(GAP) * (len(widths) - 1))
    return [list(_format_row(row, widths)) for row in rows]


def _shrink(widths: list[int], room: int) -> list[int]:
    """Narrow the widest column until the row fits."""
    while sum(widths) > room and max(widths) > _LEAST:
        widest = widths.index(max(widths))
        others = sorted(widths, reverse=True)
        second = others[1] if len(others) > 1 else _LEAST
        widths[widest] -= min(sum(widths) - room, max(1, widths[widest] - max(second, _LEAST)), widths[widest] - _LEAST)
    return widths


def _format_row(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [broken(cell, width) for cell, width in zip(row, widths, strict=True)]
    for index in range(max(map(len, cells))):
        parts = [cell[index] if index < len(cell) else "" for cell in cells]
        yield GAP.join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True)).rstrip()


def broken(text: str, width: int | None) -> list[str]:
    """Break a text at line ends, and after commas, spaces, slashes and hyphens, or else in the middle of a word.

    Lines after the first have the indentation of the first line and two more blanks. Without a width, the text is
    broken at line ends only.
    """
    indent = " " * (len(text) - len(text.lstrip(" ")))
    first, *rest = map(printable, text.split("\n"))
    return [
        part for line in (first, *(f"{indent}  {line}" for line in rest)) for part in _break_line(line, width, indent)
    ]


def _break_line(line: str, width: int | None, indent: str) -> Iterator[str]:
    while width is not None and len(line) > width:
        at = _find_break(line, width, len(indent) + 2)
        yield line[:at].rstrip(" ")
        line = f"{indent}  {line[at:].lstrip(' ')}" if width > len(indent) + 8 else line[at:].lstrip(" ")
    yield line


def _find_break(text: str, width: int, least: int) -> int:
    for ends in (" ", ",", "/-"):
        at = max(text.rfind(end, least, width + (end == " ")) for end in ends)
        if at > least:
            return at + (text[at] != " ")
    return width
