"""What an explanation says of the host: what keeps it off a pod's CPUs, and why so."""

from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.cli.support.node.what_if import has_partitions
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.trace import trace
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.views.explain.document import ExplainedPod, describe_explanation
from nodeagent.views.explain.text import render_explanation
from tests.support import json_schema
from tests.support.inspected_nodes import World
from tests.support.pods import app, mixed, pod
from tests.support.world import SMALL, empty_state, node


def explained(of: Pod, host_isolation: str = "partition", *, has_partitions: bool | None = None) -> dict[str, Any]:
    world = node(SMALL, config={"host_isolation": host_isolation})
    before = WhatIf.of(world.managers, empty_state(world).promises)
    known = [ExplainedPod(before, trace(before, of))]
    document = describe_explanation(
        known, config=world.config, what_if=before, where="here", has_partitions=has_partitions
    )
    json_schema.check(document, "explanation")
    return document


def test_containers_that_are_alike_are_said_once() -> None:
    document = explained(pod("a", app("one", cpu="1"), app("two", cpu="1")))
    (closed,) = document["pods"][0]["closedToHost"]
    assert closed["containers"] == ["one", "two"]
    assert (closed["means"], closed["kind"], closed["partitionOf"]) == ("partition", "root", "container")
    assert closed["cpus"] in render_explanation(document)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (
            pod("a", app(cpu="2"), app("beside", cpu="100m"), is_isolated=True),
            "are closed to the host by a partition (the container's, kind isolated): the pod asks for it, because it places its threads",
        ),
        (pod("a", mixed()), "are closed to the host by systemd (AllowedCPUs), not by a partition: the container also uses the shared pool"),
    ],
)  # fmt: skip
def test_by_what_and_why_is_said(of: Pod, said: str) -> None:
    assert said in " ".join(render_explanation(explained(of)).split())


@pytest.mark.parametrize(
    ("has_partitions", "means", "assumed", "said"),
    [
        (None, "partition", True, "balances the load among these CPUs (before kernel 6.7: by systemd's AllowedCPUs)"),
        (True, "partition", False, "kind root): the kernel balances the load among these CPUs"),
        (False, "systemd", False, "by systemd (AllowedCPUs), not by a partition: this kernel has no partitions below other cgroups"),
    ],
)  # fmt: skip
def test_what_the_kernel_has_is_said_where_it_is_known(
    *, has_partitions: bool | None, means: str, assumed: bool, said: str
) -> None:
    document = explained(pod("a", app(cpu="2")), has_partitions=has_partitions)
    (closed,) = document["pods"][0]["closedToHost"]
    assert (closed["means"], closed["assumed"], closed["kind"] is None) == (means, assumed, has_partitions is False)
    text = " ".join(render_explanation(document).split())
    assert said in text
    assert ("before kernel 6.7" in text) is assumed


def test_whether_the_kernel_has_partitions_is_seen_in_the_pods_cgroups() -> None:
    isolating = World(host_isolation="partition").add(pod("a", app(cpu="2")))
    without = {
        path: replace(
            group,
            attributes=tuple(
                (name, value) for name, value in group.attributes if name is not Attribute.CPUSET_CPUS_EXCLUSIVE
            ),
        )
        for path, group in isolating.observed().items()
    }
    config = isolating.config
    assert has_partitions(isolating.view(), config) is True
    assert has_partitions(isolating.view(cgroups=without), config) is False
    assert has_partitions(isolating.view(cgroups={}), config) is None
    assert has_partitions(isolating.view(), Config()) is None, "nobody asks"


@pytest.mark.parametrize(
    ("of", "host_isolation"),
    [(pod("a", app(cpu="2")), "none"), (pod("a", app(cpu="100m")), "partition"), (pod("a", app(cpu="64")), "partition")],
)  # fmt: skip
def test_otherwise_nothing_is_said(of: Pod, host_isolation: str) -> None:
    document = explained(of, host_isolation)
    assert document["pods"][0]["closedToHost"] == []
    assert "closed to the host" not in render_explanation(document)
