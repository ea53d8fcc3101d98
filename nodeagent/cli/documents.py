"""A document as the option `-o` wants it: text for people, JSON or YAML with stable names and sorted keys."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nodeagent.edge import state_files

Document = Mapping[str, Any]


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


def write_named(path: str, content: bytes, *, option: str, mode: int = 0o600) -> None:
    """Write the file that an option names, all of it or nothing.

    Raises:
        StateFileError: it could not be written.

    """
    hint = f"make the directory if it is not there (`ls -ld {Path(path).parent}`), or name another file with {option}"
    state_files.write_atomically(path, content, mode=mode, hint=hint)
