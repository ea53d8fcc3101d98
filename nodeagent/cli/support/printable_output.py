"""Filter for all output of commands. The filter escapes control characters, for instance in names, because terminals would act on them.

Commands that draw on a terminal call `find_raw_output` or `write_coloured`.
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
"""ECMA-48's colour sequences, as formatted by views/topology/text.py and views/check/node_check.py."""


class _PrintableOutput:
    """Stream that escapes all unprintable characters except newlines and tabs.

    Only the command's own thread writes to stdout. Output of other threads is written to stderr, because CPU plugins may print.
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
    """Make stdout escape unprintable characters while the block runs."""
    stream = sys.stdout
    sys.stdout = cast("TextIO", _PrintableOutput(stream))
    try:
        yield
    finally:
        sys.stdout = stream


def find_raw_output() -> TextIO:
    """Return the unfiltered stdout, for moving the cursor."""
    return sys.stdout.stream if isinstance(sys.stdout, _PrintableOutput) else sys.stdout


def write_coloured(text: str) -> None:
    """Print a text and keep nodeagent's own colours."""
    if isinstance(sys.stdout, _PrintableOutput):
        sys.stdout.write_coloured(text)
    else:
        sys.stdout.write(text)
