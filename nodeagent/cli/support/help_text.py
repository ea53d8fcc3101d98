"""Layout of help texts. Prose is wrapped to the terminal's width, but commands that users may paste stay on one line."""

import argparse
import re
import shlex
import sys
from pathlib import Path

from nodeagent.cli.support.colour import read_columns

_OWN_LINE = re.compile(r"\n(?=[a-z ]+: )")
"""Line break that stays in wrapped prose, before lines such as `next: …`."""


class HelpText(argparse.RawDescriptionHelpFormatter):
    """Formatter of help texts. Prose is wrapped. Indented lines, which are examples, stay unchanged."""

    def __init__(self, prog: str) -> None:
        # argparse makes a formatter for each argument, and would load shutil to find the width
        super().__init__(prog, width=(read_columns() or 80) - 2)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_fill_paragraph(paragraph, width, indent) for paragraph in text.split("\n\n"))


def _fill_paragraph(paragraph: str, width: int, indent: str) -> str:
    if "\n  " in paragraph:
        # a `cd` precedes examples that name project files, so that users can paste the examples in any directory
        title, _, lines = paragraph.partition("\n")
        place = find_documents()
        is_inserted = " examples/" in lines and place != _UNKNOWN
        return f"{title}\n  cd {shlex.quote(place)}\n{lines}" if is_inserted else paragraph
    import textwrap

    return "\n".join(
        textwrap.fill(
            part,
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in _OWN_LINE.split(paragraph)
    )


_UNKNOWN = "in the project's source"


def find_documents() -> str:
    """Return the directory that contains docs/ and examples/: the installed one (scripts/install.sh), or a checkout's."""
    for directory in (Path(sys.prefix, "share/nodeagent"), Path(__file__).parents[3]):
        if (directory / "docs").is_dir():
            return str(directory)
    return _UNKNOWN
