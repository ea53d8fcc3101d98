"""Text in columns within a width: what is too long is broken at commas and spaces, never lost."""

from collections.abc import Iterator, Sequence

GAP = "  "
_LEAST = 8
"""No column is made narrower."""


def table(rows: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Lay out rows of equal length, as `blocks` does."""
    return [line for block in blocks(rows, width) for line in block]


def blocks(rows: Sequence[Sequence[str]], width: int | None) -> list[list[str]]:
    """Lay out rows of equal length; the lines of each row.

    Args:
        rows: cells; the first row may be a heading.
        width: no line is longer, as long as every column can have 8 places. None: as wide as need be.

    """
    if not rows:
        return []
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


def broken(text: str, width: int) -> list[str]:
    """Break a text after commas, spaces, slashes and hyphens; in the middle of a word only where nothing else is left.

    Lines after the first are indented as the first is, and two more.
    """
    indent = " " * (len(text) - len(text.lstrip(" ")))
    lines = []
    while len(text) > width:
        at = _break_at(text, width, len(indent) + 2)
        lines.append(text[:at].rstrip(" "))
        text = f"{indent}  {text[at:].lstrip(' ')}" if width > len(indent) + 8 else text[at:].lstrip(" ")
    return [*lines, text]


def _break_at(text: str, width: int, least: int) -> int:
    for ends in (" ", ",", "/-"):
        at = max(text.rfind(end, least, width + (end == " ")) for end in ends)
        if at > least:
            return at + (text[at] != " ")
    return width
