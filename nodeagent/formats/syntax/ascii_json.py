"""JSON in printable ASCII only: it reads back the same, whatever the encoding of a terminal or a file."""

import json


def ascii_json(document: object, *, indent: int | None = None) -> str:
    """Return a document as JSON with sorted keys, with everything but printable ASCII escaped; without `indent` as one line."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(document, indent=indent, sort_keys=True, separators=separators)
    return text.replace("\x7f", "\\u007f")  # the only control character that JSON accepts unescaped
