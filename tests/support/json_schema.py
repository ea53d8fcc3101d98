"""As much of JSON Schema 2020-12 as the shipped schemas use: what a document does wrong. A word that isn't known here is an error.

The schemas are open, for readers that are older than the document. What is written is held to the documented fields: here they are closed.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SCHEMAS = Path(__file__).parents[2] / "docs" / "schema"
_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
_NOTES = {"$schema", "$id", "title", "description", "$defs"}
_KNOWN = _NOTES | {
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "$ref",
    "minimum",
    "pattern",
}


def schema(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((SCHEMAS / f"{name}.json").read_text())
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    return document


def faults(
    value: Any, rules: dict[str, Any], root: dict[str, Any], path: str = "$", *, closed: bool = True
) -> Iterator[str]:
    """Say all that is wrong; `closed`: of fields that are not documented, too."""
    assert rules.keys() <= _KNOWN, rules.keys() - _KNOWN
    if "$ref" in rules:
        file, _, name = rules["$ref"].partition("#/$defs/")
        there = root if not file else schema(file.removesuffix(".json"))
        yield from faults(value, there["$defs"][name] if name else there, there, path, closed=closed)
        closed = False
    kinds = rules.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{path}: {value!r} is none of {kinds}"
        return
    if "enum" in rules and value not in rules["enum"]:
        yield f"{path}: {value!r} is none of {rules['enum']}"
    if "const" in rules and value != rules["const"]:
        yield f"{path}: {value!r} is not {rules['const']!r}"
    if "minimum" in rules and isinstance(value, int) and value < rules["minimum"]:
        yield f"{path}: {value!r} is below {rules['minimum']}"
    if "pattern" in rules and isinstance(value, str) and not re.search(rules["pattern"], value):
        yield f"{path}: {value!r} is not as {rules['pattern']}"
    if isinstance(value, dict):
        yield from (f"{path}.{name} is missing" for name in rules.get("required", ()) if name not in value)
        for name, item in value.items():
            below = rules.get("properties", {}).get(name, rules.get("additionalProperties"))
            if isinstance(below, dict):
                yield from faults(item, below, root, f"{path}.{name}", closed=closed)
            elif closed and kinds and below is not True:
                yield f"{path}.{name} is not foreseen"
    if isinstance(value, list) and "items" in rules:
        for index, item in enumerate(value):
            yield from faults(item, rules["items"], root, f"{path}[{index}]", closed=closed)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and not (kind == "integer" and isinstance(value, bool))


def check(value: Any, name: str) -> None:
    """Fail if the document is not as its shipped schema says, or has a field that it doesn't have."""
    rules = schema(name)
    found = list(faults(value, rules, rules))
    assert not found, "\n".join(found)
