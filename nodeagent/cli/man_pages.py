"""Manual pages in the syntax of man(7), generated from the definitions of the command line.

`python -m nodeagent.cli.man_pages SHARE FISH [DOCUMENTS]` writes the pages and the shell completions during the installation. DOCUMENTS is
the directory in which documents and examples will be after the installation. It is an argument because they are in another directory while
a package is built.
"""

import importlib
import re
import sys
from pathlib import Path

from msgspec.structs import replace

from nodeagent import __version__
from nodeagent.cli.parser import COMMANDS, build_parser
from nodeagent.cli.support.completion_scripts import FISH_PLACE, PLACES, SCRIPTS
from nodeagent.cli.support.definitions import Argument, Command, extract_command
from nodeagent.cli.support.help_text import find_documents

SECTION = 8
_PROGRAM = "nodeagent"
_BELOW_PREFIX = "share/nodeagent of the environment that holds nodeagent"
"""Text for the documents' directory in manual pages that are built for a wheel. The prefix of the later installation is unknown then."""


def man_pages(place: str = _BELOW_PREFIX) -> dict[str, str]:
    """Return the text of each page by file name. There is one page for the program, and one for each command.

    Args:
        place: the directory of documents and examples after the installation.
    """
    top = extract_command(build_parser(()))
    top = replace(top, epilog=top.epilog.replace(find_documents(), place))
    pages = {_PROGRAM: _format_page(top, "pin pods to whole CPUs close to their memory")}
    for name, purpose in COMMANDS.items():
        importlib.import_module(f"nodeagent.cli.commands.{name}")
        (found,) = [one for one in extract_command(build_parser([name])).subcommands if one.name == name]
        pages[f"{_PROGRAM}-{name}"] = _format_page(extract_command(found.parser), purpose)
    return {f"{name}.{SECTION}": text for name, text in pages.items()}


def write_all(share: Path, fish: Path, place: str = _BELOW_PREFIX) -> None:
    """Write the manual pages and the shell completions.

    Args:
        share: the directory for man pages and completions, such as /usr/local/share.
        fish: the directory for fish's completions, such as /etc/fish/completions.
        place: the directory of documents and examples after the installation.
    """
    files = {share / f"man/man{SECTION}/{name}": text for name, text in man_pages(place).items()}
    files |= {share / place: SCRIPTS[shell] for shell, place in PLACES.items()}
    files[fish / FISH_PLACE] = SCRIPTS["fish"]
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _format_page(command: Command, purpose: str) -> str:
    name = command.name.replace(" ", "-")
    parts = [
        f'.TH {name.upper()} {SECTION} "" "{_PROGRAM} {__version__}" "System Administration"\n.nh\n.ad l',
        f".SH NAME\n{_escape_line(name)} \\- {_escape_line(purpose)}",
        f".SH SYNOPSIS\n{_escape_line(command.usage)}",
        f".SH DESCRIPTION\n{_escape_line(command.description)}",
    ]
    if items := _format_items((*command.places, *command.options)):
        parts += [".SH OPTIONS", *items]
    if command.subcommands:
        parts.append(".SH COMMANDS")
        for one in command.subcommands:
            inner = extract_command(one.parser)
            page = (
                f"\n.br\nSee {_format_bold(f'{_PROGRAM}-{one.name}')}({SECTION})." if command.name == _PROGRAM else ""
            )
            parts.append(f".TP\n{_format_bold(one.name)}\n{_escape_line(one.help)}{page}")
            if command.name != _PROGRAM:
                parts += [
                    f".RS\n.PP\n{_escape_line(inner.usage)}",
                    *_format_items((*inner.places, *inner.options)),
                    ".RE",
                ]
    epilog = command.epilog or (extract_command(command.subcommands[0].parser).epilog if command.subcommands else "")
    paragraphs = [_format_paragraph(text) for text in re.split(r"\n\s*\n", epilog) if text.strip()]
    parts += [part for part in paragraphs if not part.startswith(_NOTES)]
    notes = [part.removeprefix(_NOTES) for part in paragraphs if part.startswith(_NOTES)]
    parts += [_NOTES + "\n.PP\n".join(notes)] if notes else []
    if command.name != _PROGRAM:
        parts.append(f".SH SEE ALSO\n{_format_bold(_PROGRAM)}({SECTION})")
    return "\n".join(parts) + "\n"


_NOTES = ".SH NOTES\n"


def _format_items(arguments: tuple[Argument, ...]) -> list[str]:
    return [f".TP\n{_format_heading(one)}\n{_escape_line(one.help)}" for one in arguments if one.help is not None]


def _format_heading(argument: Argument) -> str:
    value = f"\\fI{_escape(argument.metavar)}\\fR" if argument.metavar else ""
    if not argument.spellings:
        return value
    return ", ".join(_format_bold(spelling) for spelling in argument.spellings) + (f" {value}" if value else "")


def _format_paragraph(text: str) -> str:
    """Format a paragraph of a command's epilog. Examples and exit statuses become sections of their own; other paragraphs become notes."""
    if text.startswith("examples:"):
        lines = (line.removeprefix("  ") for line in text.splitlines()[1:])
        return ".SH EXAMPLES\n.nf\n" + "\n".join(_escape_line(line) for line in lines) + "\n.fi"
    if text.startswith("exit status:"):
        statuses = re.split(r";\s+(?=\d)", text.removeprefix("exit status:").strip())
        return ".SH EXIT STATUS\n" + "\n.br\n".join(_escape_line(" ".join(status.split())) for status in statuses)
    return _NOTES + "\n.br\n".join(_escape_line(line) for line in text.splitlines())


def _format_bold(text: str) -> str:
    return f"\\fB{_escape(text)}\\fR"


def _escape_line(text: str) -> str:
    """Escape a line, including a `.` or `'` at its beginning, which man(7) would read as a request."""
    escaped = _escape(text)
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _escape(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")


if __name__ == "__main__":
    write_all(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])
