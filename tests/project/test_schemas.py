"""The shipped schemas are for readers of any age: a document that a later version wrote, with more fields, is still right."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from nodeagent.formats.topology.topology_json import topology_document
from nodeagent.formats.topology.topology_spec import topology_from_spec
from tests.support import json_schema

NAMES = sorted(path.stem for path in json_schema.SCHEMAS.glob("*.json"))


def objects(rules: Any) -> Iterator[dict[str, Any]]:
    if isinstance(rules, dict):
        yield rules
    for inner in rules.values() if isinstance(rules, dict) else rules if isinstance(rules, list) else ():
        yield from objects(inner)


@pytest.mark.parametrize("name", NAMES)
def test_a_schema_allows_fields_that_come_later(name: str) -> None:
    rules = json_schema.schema(name)
    assert [found for found in objects(rules) if found.get("additionalProperties") is False] == []
    assert [found for found in objects(rules) if "$ref" in found and "properties" in found] == []


def test_a_field_more_is_right_for_readers_and_wrong_for_us() -> None:
    rules = json_schema.schema("topology")
    document = json.loads(json.dumps(topology_document(topology_from_spec("1s.2c"))))
    document["topology"]["cpus"][0]["colour"] = "red"
    assert list(json_schema.faults(document, rules, rules, closed=False)) == []
    assert list(json_schema.faults(document, rules, rules)) == ["$.topology.cpus[0].colour is not foreseen"]
    document["topology"]["cpus"][0]["core"] = "0"
    assert list(json_schema.faults(document, rules, rules, closed=False)) == [
        "$.topology.cpus[0].core: '0' is none of ['integer']"
    ]
