"""Scenarios with files that nobody's memory manager wrote: refused with kubelet's words, and shown as they are."""

import json
from typing import Any

import pytest

from nodeagent.formats.scenario.scenario import memory_state_document, scenario_from_text
from nodeagent.views.simulate.scenario_replay import replay

BLOCK = {"numaAffinity": [0], "type": "memory", "size": 1}


def started_from(text: str) -> dict[str, Any]:
    document = {
        "topology": {"cpus": [{"id": c, "core": c, "socket": 0, "numa": 0} for c in (0, 1)]},
        "config": {"memoryManagerPolicy": "Static", "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}]},
        "files": {"memory_manager_state": text},
    }
    return replay(scenario_from_text(json.dumps(document), "odd"))


@pytest.mark.parametrize(
    "blocks",
    [7, None, [7], [{}], [{"type": "memory"}], [BLOCK, BLOCK | {"numaAffinity": None}], [BLOCK, {"type": 1}]],
    ids=json.dumps,
)
def test_odd_lists_of_blocks_are_shown_as_they_are(blocks: object) -> None:
    odd = {"policyName": "Static", "entries": {"p": {"a": blocks}}, "podEntries": {"p": {"memoryBlocks": blocks}}}
    result = started_from(json.dumps(odd | {"checksum": 1}))
    assert result["startError"].startswith("could not restore state from checkpoint: ")
    assert result["memoryManagerState"] == odd


@pytest.mark.parametrize("odd", [{"entries": [1]}, {"entries": {"p": 1}}, {"podEntries": {"p": 1}}], ids=json.dumps)
def test_odd_entries_are_shown_as_they_are(odd: dict[str, Any]) -> None:
    assert started_from(json.dumps(odd))["memoryManagerState"] == odd


@pytest.mark.parametrize("text", ["[", "[]", "[" * 100_000, "7"], ids=lambda text: text[:3])
def test_what_is_no_object_is_shown_raw(text: str) -> None:
    result = started_from(text)
    assert result["memoryManagerState"] == {"raw": text}
    assert "startError" in result


def test_blocks_are_shown_by_type_and_nodes() -> None:
    pages, far = BLOCK | {"type": "hugepages-2Mi"}, BLOCK | {"numaAffinity": [1]}
    shown = memory_state_document(json.dumps({"entries": {"p": {"a": [far, BLOCK, pages]}}}))
    assert shown == {"entries": {"p": {"a": [pages, BLOCK, far]}}}


def guaranteed(uid: str, cpu: int) -> dict[str, Any]:
    amounts = {"cpu": str(cpu), "memory": "1Gi"}
    container = {"name": "c", "resources": {"requests": amounts, "limits": amounts}}
    return {"metadata": {"name": uid, "uid": uid, "namespace": "default"}, "spec": {"containers": [container]}}


def replayed(cores: dict[int, int], *steps: dict[str, Any]) -> list[dict[str, Any]]:
    document = {
        "topology": {"cpus": [{"id": c, "core": core, "socket": 0, "numa": 0} for c, core in cores.items()]},
        "config": {"cpuManagerPolicy": "static", "reservedSystemCPUs": "0"},
        "steps": list(steps),
    }
    steps_shown: list[dict[str, Any]] = replay(scenario_from_text(json.dumps(document), "odd"))["steps"]
    return steps_shown


def test_a_core_is_known_by_its_lowest_cpu_whatever_its_number() -> None:
    """Kubelet takes equal cores by their lowest CPU."""
    add = {"op": "add", "pod": guaranteed("p", 2)}
    (plain,) = replayed({0: 0, 4: 0, 1: 1, 5: 1, 2: 2, 6: 2, 3: 3, 7: 3}, add)
    (other,) = replayed({0: 9, 4: 9, 1: 8, 5: 8, 2: 7, 6: 7, 3: 6, 7: 6}, add)
    assert plain["pods"]["p"]["containers"]["c"]["cpuset"] == "1,5"
    assert other == plain


def test_a_pod_that_is_there_cannot_be_added_again() -> None:
    add, end = {"op": "add", "pod": guaranteed("p", 2)}, {"op": "removePod", "podUID": "p"}
    more = {"op": "add", "pod": guaranteed("p", 3)}
    first, again, _, after = replayed({c: c for c in range(8)}, add, more, end, more)
    assert not again["admitted"]
    assert again["error"] == "a pod with this UID is active: removePod ends it"
    assert {**again, "admitted": True} == {**first, "error": again["error"]}, "nothing is decided"
    assert after["pods"]["p"]["containers"]["c"]["cpuset"] == "1-3"
