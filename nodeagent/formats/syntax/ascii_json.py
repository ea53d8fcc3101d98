"""JSON in printable ASCII only: it is the same, and reads back the same, whatever the encoding of a terminal or a file."""

import json


def ascii_json(document: object, *, indent: int | None = None) -> str:
    """Return a document as JSON with sorted keys, all else than printable ASCII escaped; without `indent` as one line."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(document, indent=indent, sort_keys=True, separators=separators)
    return text.replace("\x7f", "\\u007f")  # the one control character that JSON takes as it is
