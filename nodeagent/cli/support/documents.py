"""Output of commands: a document in the format that `-o` names, or a file at the path that `--out` names."""

import argparse
import errno
import json
import os
import shlex
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodeagent.cli.support.named_files import is_absent, named_path
from nodeagent.edge.files import state_files
from nodeagent.formats.syntax.ascii_json import ascii_json

Document = Mapping[str, Any]
_STDOUT = "-"


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Add `-o` to a command with the three usual output formats: text, JSON and YAML (D26)."""
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "yaml"), default="text", help="output format (default: text)"
    )


def add_out_argument(parser: argparse.ArgumentParser, what: str = "the file to write") -> None:
    """Add `--out` to a command that writes a file."""
    parser.add_argument("--out", type=named_path, metavar="FILE", default=_STDOUT, help=f"{what} (default: -, stdout)")


def render_document(document: Document, output: str, render: Callable[[Document], str]) -> str:
    """Return the text that the command prints, including the last newline.

    Args:
        document: the document, which contains only plain values.
        output: the format: `text`, `json` or `yaml`.
        render: the function that renders the document as text.
    """
    return render(document) if output == "text" else format_document(document, output)


def format_document(document: Document, output: str) -> str:
    """Format a document as `json` or `yaml`, including its last newline.

    Everything except printable ASCII is escaped, so that the output doesn't depend on the encoding of stdout.
    """
    as_json = ascii_json(document, indent=2)
    if output == "json":
        return as_json + "\n"
    import yaml

    plain = json.loads(as_json)  # no object may occur twice, because YAML would write its second occurrence as an alias
    text: str = yaml.safe_dump(plain, sort_keys=True)
    return text


def format_json_line(document: Document) -> str:
    """Format a document as one line of JSON, with the same escapes as `format_document`."""
    return ascii_json(document) + "\n"


def format_xml(text: str) -> str:
    """Replace all characters outside ASCII in an XML text by character references, so that the output doesn't depend on the encoding of
    stdout.
    """
    return text.encode("ascii", "xmlcharrefreplace").decode()


def write_out(path: str, content: bytes, *, mode: int = 0o600, replaces: bool = True, option: str = "--out") -> None:
    """Write the file that an option names, completely or not at all.

    Args:
        path: the path, or `-` for stdout. An existing regular file is replaced; directories, devices, FIFOs, sockets and links are refused.
        content: the content of the file.
        mode: the permissions of the file.
        replaces: whether an existing file may be replaced.
        option: the option that named the file, for errors.

    Raises:
        StateFileError: the file could not be written.
    """
    if path == _STDOUT:
        sys.stdout.buffer.write(content)
        return
    try:
        kind = stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        kind = 0  # either the file doesn't exist yet, or it isn't accessible and the write below reports the reason
    if kind not in {0, stat.S_IFREG}:
        raise state_files.StateFileError(
            f"cannot write {path}: it is a directory, link, device, FIFO or socket",
            path=path,
            error=None,
            hint=f"name a regular file with {option}{', or leave out --out for stdout' if option == '--out' else ''}; "
            f"`ls -ld {shlex.quote(path)}` shows what is there",
        )
    if kind == stat.S_IFREG and not replaces:
        raise state_files.StateFileError(
            f"cannot write {path}: the file exists already",
            path=path,
            error=errno.EEXIST,
            hint=f"move it away (`mv {shlex.quote(path)} {shlex.quote(path)}.old`), or name another file with {option}",
        )
    try:
        state_files.write_atomically(path, content, mode=mode)
    except state_files.StateFileError as err:
        parent = Path(path).parent
        if err.errno in {errno.ENOSPC, errno.EDQUOT}:
            way_out = "make room: `df {parent}` shows the file system"
        elif is_absent(str(parent)):
            way_out = "make the directory: `mkdir -p {parent}`"
        else:
            way_out = "see who may write there: `namei -l {parent}`"
        hint = f"{way_out.format(parent=shlex.quote(str(parent)))}; or name another file with {option}"
        raise state_files.StateFileError(err.message, path=path, error=err.errno, hint=hint) from err
