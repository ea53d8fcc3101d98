"""Text in columns within a width: what is too long is broken at commas and spaces, never lost.

Contains nothing that could control a terminal, wherever it comes from: unprintable characters are escaped.
"""

from collections.abc import Iterator, Sequence

from nodeagent.errors import printable

GAP = "  "
_LEAST = 8
"""No column is made narrower."""


def table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Lay out rows of equal length, as `blocks` does."""
    return [line for block in blocks(rows, width) for line in block]


def blocks(rows: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Lay out rows of equal length; return the lines of each row.

    Args:
        rows: cells; the first row may be a heading.
        width: no line is longer, as long as every column can have 8 places. None: unlimited.
    """
    if not rows:
        return []
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    if width is not None:
        widths = _shrunk(widths, width - len(GAP) * (len(widths) - 1))
    return [list(_lines(row, widths)) for row in rows]


def _shrunk(widths: list[int], room: int) -> list[int]:
    """Take from the widest column until all fit."""
    while sum(widths) > room and max(widths) > _LEAST:
        widest = widths.index(max(widths))
        others = sorted(widths, reverse=True)
        second = others[1] if len(others) > 1 else _LEAST
        widths[widest] -= min(sum(widths) - room, max(1, widths[widest] - max(second, _LEAST)), widths[widest] - _LEAST)
    return widths


def _lines(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    cells = [broken(cell, width) for cell, width in zip(row, widths, strict=True)]
    for index in range(max(map(len, cells))):
        parts = [cell[index] if index < len(cell) else "" for cell in cells]
        yield GAP.join(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True)).rstrip()


def broken(text: str, width: int | None) -> list[str]:
    """Break a text at line ends, and after commas, spaces, slashes and hyphens; in the middle of a word only as a last resort.

    Lines after the first are indented like the first, and two more. Width None: at line ends only.
    """
    indent = " " * (len(text) - len(text.lstrip(" ")))
    first, *rest = map(printable, text.split("\n"))
    return [part for line in (first, *(f"{indent}  {line}" for line in rest)) for part in _parts(line, width, indent)]


def _parts(line: str, width: int | None, indent: str) -> Iterator[str]:
    while width is not None and len(line) > width:
        at = _break_at(line, width, len(indent) + 2)
        yield line[:at].rstrip(" ")
        line = f"{indent}  {line[at:].lstrip(' ')}" if width > len(indent) + 8 else line[at:].lstrip(" ")
    yield line


def _break_at(text: str, width: int, least: int) -> int:
    for ends in (" ", ",", "/-"):
        at = max(text.rfind(end, least, width + (end == " ")) for end in ends)
        if at > least:
            return at + (text[at] != " ")
    return width
