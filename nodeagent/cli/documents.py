"""What commands give: an answer in the form that `-o` names, or a file where `--out` says. The two options mean that everywhere."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodeagent.edge import state_files

Document = Mapping[str, Any]
_STDOUT = "-"


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Add `-o`, of commands whose answer has the usual three forms."""
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "yaml"), default="text", help="form of the answer (default: text)"
    )


def add_out_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--out`, of commands that write a file."""
    parser.add_argument("--out", metavar="FILE", default=_STDOUT, help="the file to write (default: -, stdout)")


def printed(document: Document, output: str, render: Callable[[Document], str]) -> str:
    """Give the text to print, with its last line's end.

    Args:
        document: of plain values.
        output: `text`, `json` or `yaml`.
        render: makes the text for people.
    """
    return render(document) if output == "text" else spelled(document, output)


def spelled(document: Document, output: str) -> str:
    """Give a document as `json` or `yaml`, with its last line's end."""
    as_json = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    if output == "json":
        return as_json + "\n"
    import yaml

    plain = json.loads(as_json)  # without shared parts, which YAML would write as anchors
    text: str = yaml.safe_dump(plain, sort_keys=True, allow_unicode=True)
    return text


def write_out(path: str, content: bytes, *, mode: int = 0o600) -> None:
    """Write the file that `--out` names, all of it or nothing.

    Raises:
        StateFileError: it could not be written.

    """
    if path == _STDOUT:
        sys.stdout.buffer.write(content)
        return
    hint = f"make the directory if it is not there (`ls -ld {Path(path).parent}`), or name another file with --out"
    state_files.write_atomically(path, content, mode=mode, hint=hint)
