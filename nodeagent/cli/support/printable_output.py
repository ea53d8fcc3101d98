"""Filters what commands print, because terminals act on control characters: lets only our own pass, never those in names.

All output passes here, so no command has to think of it. Code that draws on a terminal asks for it: `unescaped`, `write_coloured`.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any, TextIO, cast

from nodeagent.errors import printable

_LAYOUT = re.compile(r"([\n\t])")
_COLOURED = re.compile(r"([\n\t]|\x1b\[(?:0|3[0-9]|1;[39][0-9])m)")
"""With ECMA-48's colour sequences, as views/topology/text.py and views/check/node_check.py spell them."""


class _PrintableOutput:
    """A stream that escapes everything unprintable except line ends and tabs.

    The command's own thread writes the answer. What others write goes to stderr: CPU plugins print as they like.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._thread = get_ident()

    def write(self, text: str) -> int:
        if get_ident() != self._thread:
            return sys.stderr.write(_escaped(text, _LAYOUT))
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
def escape_output() -> Iterator[None]:
    """Make stdout escape what can't be printed, for this block."""
    stream = sys.stdout
    sys.stdout = cast("TextIO", _PrintableOutput(stream))
    try:
        yield
    finally:
        sys.stdout = stream


def raw_output() -> TextIO:
    """Return stdout as it is, for moving the cursor."""
    return sys.stdout.stream if isinstance(sys.stdout, _PrintableOutput) else sys.stdout


def write_coloured(text: str) -> None:
    """Print a text and keep our colours."""
    if isinstance(sys.stdout, _PrintableOutput):
        sys.stdout.write_coloured(text)
    else:
        sys.stdout.write(text)
