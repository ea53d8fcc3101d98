# ruff: noqa: INP001 - a script of its own
"""Runs the commands that README and docs/ show, and keeps their outputs and pictures in the pages: `make shown`.

A page's files (blocks with a title) and the examples lie in a directory of its own, in which its commands (`console` blocks)
run one after the other. Blocks titled `on a node` are for a node: integration/test_documentation.py runs them in a guest.
A line `…` in an output stands for any lines. A picture is what a command writes into NAME.svg.
"""

import contextlib
import io
import re
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from nodeagent.cli.main import main as nodeagent

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
ON_A_NODE = "on a node"
ANYTHING = "…"
_BLOCK = re.compile(r'^```(\w*)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_PLAIN = re.compile(r"nodeagent [^|&;<>$`*]*")
"""What needs no shell: it runs in this process, which takes a tenth of the time."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A command, and what it prints as the page has it."""

    command: str
    output: str


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    title: str
    text: str

    @property
    def is_file(self) -> bool:
        """Whether it is a file's text, and the title its name."""
        return self.language != "console" and bool(self.title)

    @property
    def runs_here(self) -> bool:
        return self.language == "console" and self.title != ON_A_NODE

    def commands(self) -> list[Shown]:
        """Give what is typed after `$`, with lines after `>` that go on, and what is printed below it."""
        found = []
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            first, *lines = part.splitlines()
            typed = 0
            while typed < len(lines) and lines[typed].startswith("> "):
                typed += 1
            command = "\n".join([first, *(line.removeprefix("> ") for line in lines[:typed])])
            found.append(Shown(command, "".join(f"{line}\n" for line in lines[typed:])))
        return found


def blocks(text: str) -> list[Block]:
    """Give a page's blocks of code, in order."""
    return [Block(language, title, body) for language, title, body in _BLOCK.findall(text)]


def pages() -> list[Path]:
    """Give the pages that show commands which run here."""
    written = [README, *sorted(DOCS.rglob("*.md"))]
    return [path for path in written if any(block.runs_here for block in blocks(path.read_text()))]


def is_as_shown(shown: str, printed: str) -> bool:
    """Compare; a line `…` stands for any lines, blanks at the ends of lines don't count."""
    lines = [".*" if line == ANYTHING else re.escape(line) + r"\n" for line in _lines(shown)]
    return re.fullmatch("".join(lines), "".join(f"{line}\n" for line in _lines(printed)), re.DOTALL) is not None


def refreshed(text: str, directory: Path) -> str:
    """Run a page's commands in a directory, and give the page with what they print."""
    (directory / "examples").symlink_to(ROOT / "examples")
    return _BLOCK.sub(lambda found: _refreshed_block(found, directory), text)


def main() -> int:
    """Rewrite pages and pictures."""
    for path in pages():
        with tempfile.TemporaryDirectory() as scratch:
            directory = Path(scratch)
            path.write_text(refreshed(path.read_text(), directory))
            for picture in directory.glob("*.svg"):
                PICTURES.mkdir(exist_ok=True)
                (PICTURES / picture.name).write_bytes(picture.read_bytes())
    return 0


def _refreshed_block(found: re.Match[str], directory: Path) -> str:
    block = Block(found[1], found[2] or "", found[3])
    if block.is_file and not block.title.startswith("/"):
        (directory / block.title).write_text(block.text)
    if not block.runs_here:
        return found[0]
    text = ""
    for shown in block.commands():
        printed = "".join(f"{line}\n" for line in _lines(_printed(shown.command, directory)))
        kept = shown.output if is_as_shown(shown.output, printed) else printed
        first, *more = shown.command.splitlines()
        text += f"$ {first}\n" + "".join(f"> {line}\n" for line in more) + kept
    title = f' title="{block.title}"' if block.title else ""
    return f"```{block.language}{title}\n{text}```"


def _printed(command: str, directory: Path) -> str:
    """Run one command, and give what a terminal would show of it."""
    program, pipe, filters = command.partition(" | ")
    program, _, target = program.partition(" >")
    if not _PLAIN.fullmatch(program):
        return _piped(command, "", directory)
    output = io.StringIO()
    with contextlib.chdir(directory), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        nodeagent(shlex.split(program)[1:])
    if target:
        (directory / target).write_text(output.getvalue())
        return ""
    return _piped(filters, output.getvalue(), directory) if pipe else output.getvalue()


def _piped(command: str, text: str, directory: Path) -> str:
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=directory,
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
