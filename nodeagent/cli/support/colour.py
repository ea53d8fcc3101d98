"""Colours and width of text output, as options, environment variables and the terminal determine them."""

import argparse
import os
import sys
from contextlib import suppress


def add_color_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="colours in text (default: auto, in a terminal, unless NO_COLOR is set)",
    )


def wants_colour(choice: str) -> bool:
    """Return whether to colour stdout. `choice` is the value of `--color`. With `auto`, only a terminal is coloured, unless NO_COLOR
    (https://no-color.org) or TERM=dumb is set.
    """
    if choice != "auto":
        return choice == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def find_terminal_width() -> int | None:
    """Return the width of stdout's terminal in columns, where the variable COLUMNS takes precedence. None means that stdout isn't a
    terminal, or that its width is unknown.
    """
    return read_columns() if sys.stdout.isatty() else None


def read_columns() -> int | None:
    """Return the value of the variable COLUMNS, or else the width of stdout's terminal in columns. None means that neither is known."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named):
        return int(named)
    with suppress(OSError, ValueError):  # stdout may be closed, or may not be a terminal
        return os.get_terminal_size(sys.stdout.fileno()).columns or None
    return None


def text_width() -> int:
    """Return the width of text output in columns, namely the width of stdout's terminal, or 80 if stdout isn't a terminal."""
    return find_terminal_width() or 80
