"""`nodeagent inspect -o json` is as its shipped schema says, in every state of pods, containers and agent."""

from typing import Any

import pytest

import inspected
import json_schema
from nodeagent.core.idset import CpuSet
from nodeagent.formats.inspection import HostProcess, HostProcesses, Sight, inspection
from test_inspection import RECOVERY

WORLDS = {
    "everything": lambda: inspected.everything()[2],
    "idle": lambda: inspected.idle().sight(),
    "nothing seen": lambda: inspected.idle().sight(seen=None, kernel=None, pids=None, process_counts=None),
    "host processes": lambda: inspected.idle().sight(
        host=HostProcesses((HostProcess(1, "init", CpuSet.of(0)),), 3, CpuSet.of(1), 2)
    ),
    "recovered": lambda: inspected.idle().sight(recovery=RECOVERY, problems=("x",)),
}


@pytest.mark.parametrize("name", WORLDS)
def test_its_document_is_as_its_schema_says(name: str) -> None:
    sight: Sight = WORLDS[name]()
    json_schema.check(inspection(sight), "inspection")


def test_every_field_of_it_is_in_the_schema() -> None:
    rules = json_schema.schema("inspection")

    def strangers(value: Any, rule: dict[str, Any], path: str) -> list[str]:
        rule = rules["$defs"][rule["$ref"].rpartition("/")[2]] if "$ref" in rule else rule
        if isinstance(value, dict) and "properties" in rule:
            known = rule["properties"]
            return [f"{path}.{name}" for name in value if name not in known] + [
                found
                for name, item in value.items()
                if name in known
                for found in strangers(item, known[name], f"{path}.{name}")
            ]
        if isinstance(value, list):
            return [found for item in value for found in strangers(item, rule.get("items", {}), f"{path}[]")]
        return []

    assert strangers(inspection(inspected.everything()[2]), rules, "$") == []
