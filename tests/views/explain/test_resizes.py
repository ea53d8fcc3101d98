"""What is said of a resize, by what its document has."""

from typing import Any

import pytest

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.resizing import resizing
from nodeagent.core.model.pod import ResourceRequirements
from nodeagent.views.explain.resizes import describe_resize_changes, format_refused_resize, format_resize
from tests.support.node_model import started
from tests.support.pods import amounts, app, pod
from tests.support.world import SMALL, node


def change(**fields: str | None) -> dict[str, Any]:
    return {"name": "app", "cpus": "1-2", "cpusBefore": "1-2", "memory": "1Gi", "memoryBefore": "1Gi", **fields}


def refused(*freeing: str, is_deferred: bool = True, all_tried: bool = True) -> list[str]:
    document = {"allTried": all_tried, "changes": [change()], "freeing": list(freeing), "isDeferred": is_deferred}
    return format_resize(document, is_resized=False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cpus": "1-4"}, "CPUs 1-2 → 1-4"),
        ({"cpusBefore": "1-4"}, "CPUs 1-4 → 1-2"),
        ({"memory": "2Gi on NUMA 0"}, "memory 1Gi → 2Gi on NUMA 0"),
        ({"cpus": "1", "memory": "2Gi"}, "CPUs 1-2 → 1, memory 1Gi → 2Gi"),
        ({}, "other amounts, on the same CPUs"),
    ],
    ids=["up", "down", "memory", "both", "weights alone"],
)
def test_each_container_is_told_with_what_it_had_and_has(fields: dict[str, str | None], said: str) -> None:
    document = {"changes": [change(**fields)], "whole": None, "wholeBefore": None}
    assert format_resize(document, is_resized=True) == [f"app: {said}"]


def test_one_that_can_never_be_is_not_tried_again() -> None:
    assert refused(is_deferred=False) == ["the pod keeps running unchanged"]


def test_whose_end_would_help_is_named() -> None:
    first, second = refused("default/a", "default/b")
    assert "retried before new pods" in first
    assert second == "the resize will succeed once one of these pods ends: default/a, default/b"


def test_that_nobodys_end_alone_would_help_is_said_only_if_all_were_tried() -> None:
    assert refused()[1:] == ["the end of a single pod isn't enough for it"]
    assert len(refused(all_tried=False)) == 1


def test_of_a_pod_as_a_whole_requests_are_told_that_alone_change() -> None:
    of = node(SMALL)
    old, new = (
        pod("a", app(), resources=ResourceRequirements(amounts(request), amounts("4"))) for request in ("1", "2")
    )
    _, agent = started(of, old)
    part = describe_resize_changes(
        resizing(WhatIf.of(of.managers, agent.state.promises, (old,), of.allocatable), old, new)
    )
    (line,) = format_resize(part, is_resized=True)
    assert line == "the pod as a whole: cpu 1, memory 64Mi → cpu 2, memory 64Mi"


def test_what_was_refused_for_good_is_not_said_to_be_tried_again() -> None:
    """The node has more CPUs now, and the refusal stays until somebody asks."""
    of = node(SMALL)
    old, beside = pod("a", app(cpu="2")), pod("b", app(cpu="4"))
    _, agent = started(of, old, beside)
    there = WhatIf.of(of.managers, agent.state.promises, (old, beside), of.allocatable)
    deferred, fits = (resizing(there, old, pod("a", app(cpu=cpu))) for cpu in ("5", "3"))
    retry = "`nodeagent retry default/a` tries it again"
    assert format_refused_resize(deferred, is_final=True)[1:] == [
        f"the pod keeps running unchanged; {retry}",
        "the resize will succeed once one of these pods ends: default/b",
    ]
    assert "retried before new pods" in format_refused_resize(deferred, is_final=False)[1]
    assert format_refused_resize(fits, is_final=True)[0] == f"it would succeed now ({retry}):"
    assert format_refused_resize(fits, is_final=False)[0] == "it would succeed now:"
