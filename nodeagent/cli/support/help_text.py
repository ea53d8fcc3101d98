"""Layout of help texts: prose fits the terminal, commands to paste stay on one line."""

import argparse
import re
import shlex
import sys
from pathlib import Path

_OWN_LINE = re.compile(r"\n(?=[a-z ]+: )")
"""Before `next: …` and its like."""


class HelpText(argparse.RawDescriptionHelpFormatter):
    """Breaks the prose around the arguments; indented lines are examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(paragraph, width, indent) for paragraph in text.split("\n\n"))


def _filled(paragraph: str, width: int, indent: str) -> str:
    if "\n  " in paragraph:
        return _with_place(paragraph)
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


def _with_place(examples: str) -> str:
    """Prefix examples that name files of ours with their path, so that they can be pasted anywhere."""
    title, _, lines = examples.partition("\n")
    place = find_documents()
    return f"{title}\n  cd {shlex.quote(place)}\n{lines}" if " examples/" in lines and place != _UNKNOWN else examples


_UNKNOWN = "in the project's source"


def find_documents() -> str:
    """Where docs/ and examples/ are: as installed (scripts/install.sh), or in a checkout."""
    for directory in (Path(sys.prefix, "share/nodeagent"), Path(__file__).parents[3]):
        if (directory / "docs").is_dir():
            return str(directory)
    return _UNKNOWN
