"""What commands print reaches a terminal that acts on control characters: of ours only, never of a name that somebody chose.

All of it passes here, so no command has to think of it. What draws on a terminal says so: `unescaped`, `write_coloured`.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from nodeagent.errors import printable

_LAYOUT = re.compile(r"([\n\t])")
_COLOURED = re.compile(r"([\n\t]|\x1b\[(?:0|3[0-9]|1;[39][0-9])m)")
"""With ECMA-48's selection of a colour, as views/topology/text.py and views/check/node_check.py spell it."""


class _PrintableOutput:
    """A stream on which everything but line ends and tabs is escaped that can't be printed."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        if text.replace("\n", "").isprintable():
            return self.stream.write(text)
        return self.stream.write(_escaped(text, _LAYOUT))

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def write_coloured(self, text: str) -> None:
        self.stream.write(_escaped(text, _COLOURED))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _escaped(text: str, kept: re.Pattern[str]) -> str:
    return "".join(part if i % 2 else printable(part) for i, part in enumerate(kept.split(text)))


@contextmanager
def printable_output() -> Iterator[None]:
    """Have stdout escape what can't be printed, for this block."""
    stream = sys.stdout
    sys.stdout = cast("TextIO", _PrintableOutput(stream))
    try:
        yield
    finally:
        sys.stdout = stream


def unescaped() -> TextIO:
    """Return stdout as it is, for what moves the cursor."""
    return sys.stdout.stream if isinstance(sys.stdout, _PrintableOutput) else sys.stdout


def write_coloured(text: str) -> None:
    """Print a text in which our colours stay."""
    if isinstance(sys.stdout, _PrintableOutput):
        sys.stdout.write_coloured(text)
    else:
        sys.stdout.write(text)
