"""JSON in printable ASCII only, which stays readable in every encoding of a terminal or file."""

import json


def ascii_json(document: object, *, indent: int | None = None) -> str:
    """Format a document as JSON with sorted keys and escape everything but printable ASCII. Without `indent`, the
    result is one line.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(document, indent=indent, sort_keys=True, separators=separators)
    return text.replace("\x7f", "\\u007f")  # DEL is the only control character that JSON accepts unescaped
