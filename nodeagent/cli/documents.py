"""A document as the option `-o` wants it: text for people, JSON or YAML with stable names and sorted keys."""

import json
from collections.abc import Callable, Mapping
from typing import Any

Document = Mapping[str, Any]


def printed(document: Document, output: str, render: Callable[[Document], str]) -> str:
    """Give the text to print, with its last line's end.

    Args:
        document: of plain values.
        output: `text`, `json` or `yaml`.
        render: makes the text for people.
    """
    if output == "text":
        return render(document)
    as_json = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
    if output == "json":
        return as_json + "\n"
    import yaml  # noqa: PLC0415 - the other forms don't pay for its start-up

    plain = json.loads(as_json)  # without shared parts, which YAML would write as anchors
    text: str = yaml.safe_dump(plain, sort_keys=True, allow_unicode=True)
    return text
