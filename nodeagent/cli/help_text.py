"""How help is laid out: prose fits the terminal, commands to be pasted stay whole lines."""

import argparse
import re

_OWN_LINE = re.compile(r"\n(?=[a-z ]+: )")
"""Before `next: …` and its like."""


class HelpText(argparse.RawDescriptionHelpFormatter):
    """Breaks the prose around the arguments; lines that are set in are examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(paragraph, width, indent) for paragraph in text.split("\n\n"))


def _filled(paragraph: str, width: int, indent: str) -> str:
    if "\n  " in paragraph:
        return paragraph
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
