"""Filter for everything that commands print. It escapes control characters, which names may contain and on which a terminal would act.

Commands that draw on a terminal bypass the filter with `find_raw_output`, `find_raw_errors` or `write_coloured`.
"""

import re
import sys
from _thread import get_ident
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from nodeagent.errors import printable

_LAYOUT = re.compile(r"([\n\t])")
_COLOURED = re.compile(r"([\n\t]|\x1b\[(?:0|3[0-9]|1;[39][0-9])m)")
"""Pattern for newlines, tabs and the colour sequences (ECMA-48) of the views, which `write_coloured` doesn't escape."""


class _PrintableOutput:
    """Stream that escapes all unprintable characters except newlines and tabs."""

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


class _AnswerOutput(_PrintableOutput):
    """Stream for stdout that only the command's own thread writes to. What other threads print goes to stderr, because CPU plugins may
    print something.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._thread = get_ident()

    def write(self, text: str) -> int:
        return super().write(text) if get_ident() == self._thread else sys.stderr.write(text)


def _escaped(text: str, kept: re.Pattern[str]) -> str:
    return "".join(part if i % 2 else printable(part) for i, part in enumerate(kept.split(text)))


@contextmanager
def escape_output() -> Iterator[None]:
    """Make stdout and stderr escape unprintable characters while the `with` block runs."""
    output, errors = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast("TextIO", _AnswerOutput(output)), cast("TextIO", _PrintableOutput(errors))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = output, errors


def find_raw_output() -> TextIO:
    """Return stdout without the filter, for a caller that moves the cursor."""
    return sys.stdout.stream if isinstance(sys.stdout, _PrintableOutput) else sys.stdout


def find_raw_errors() -> TextIO:
    """Return stderr without the filter, for a caller that draws a progress bar."""
    return sys.stderr.stream if isinstance(sys.stderr, _PrintableOutput) else sys.stderr


def write_coloured(text: str) -> None:
    """Print a text without escaping nodeagent's own colours in it."""
    if isinstance(sys.stdout, _PrintableOutput):
        sys.stdout.write_coloured(text)
    else:
        sys.stdout.write(text)
