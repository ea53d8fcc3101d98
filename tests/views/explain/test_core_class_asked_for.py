"""What an explanation says of a pod that asks for a class of cores, or prefers one, and what admits it where there are too few."""

from typing import Any

import pytest

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.views.explain.text import render_explanation
from tests.support.builders import MACHINE_A, admitted, hybrid, managers
from tests.support.explained_pods import explained_pod
from tests.support.pods import app, pod


def explained(of: Pod, topology: Any = None, **placement: Any) -> str:
    """On a node where 3 of 8 CPUs of performance cores are left, and all 4 of efficiency cores."""
    node = managers(topology or hybrid(), reserved="0", **placement)
    there = pod("there", app(cpu="4", memory="1Gi"), core_class=None if topology else "performance")
    before = WhatIf.of(node, admitted(node, there), (there,))
    document = explained_pod(before, of, Config(node.placement))
    assert document["pods"][0]["coreClass"] == of.core_class
    return " ".join(render_explanation(document).split())


FAST, SLOW = {"core_class": "performance"}, {"core_class": "efficiency"}
WISH = {"preferred_core_class": "performance"}
NODES_WISH = {"exclusive_core_class": "performance"}
RESTRICTED = {"topology_manager_policy": "restricted"}
WHOLE = {"options": ("full-pcpus-only",)}


@pytest.mark.parametrize(
    ("cpu", "asked", "placement", "said"),
    [
        ("2", FAST, {}, "it requires performance cores for its exclusive CPUs"),
        ("2", FAST, {}, "app exclusive 6-7 NUMA 0, performance"),
        ("4", FAST, {}, "wants 4 CPUs exclusively on performance cores, and 3 can still be allocated: 1 short"),
        ("4", FAST, {}, "NUMA 0: 3 of 8 free (default/there"),
        ("4", FAST, {}, "* let container app request cpu 3 instead of 4"),
        ("4", FAST, {}, "* let it prefer performance cores instead of requiring them"),
        ("4", FAST, {}, "* let it require efficiency cores instead of performance cores"),
        ("5", SLOW, RESTRICTED, "wants 5 CPUs on efficiency cores on a single NUMA node (topologyManagerPolicy restricted)"),
        ("5", SLOW, RESTRICTED, "NUMA 0: 4 CPUs free of 4, 1 short"),
        ("3", FAST, WHOLE, "on performance cores, and full-pcpus-only allocates only whole cores of 2 CPUs 3 is not a multiple of 2"),
        ("500m", FAST, {}, "container app has no exclusive CPUs: its CPU request is not a whole number"),
        ("2", WISH, {}, "it prefers performance cores: all its exclusive CPUs are among them app"),
        ("4", WISH, {}, "it prefers performance cores: these weren't enough, so all cores counted"),
        ("4", WISH, {}, "app exclusive 8-11 NUMA 0, efficiency"),
        ("6", WISH, {}, "NUMA 0, performance and efficiency"),
        ("2", {}, NODES_WISH, "exclusiveCoreClass prefers performance cores: all its exclusive CPUs are among them"),
        ("9", {}, NODES_WISH, "so all cores counted What is missing container app wants 9 CPUs exclusively, and 7 can"),
        ("2", {}, NODES_WISH, "topology none, exclusiveCoreClass performance"),
    ],
)  # fmt: skip
def test_what_is_said(cpu: str, asked: dict[str, Any], placement: dict[str, Any], said: str) -> None:
    assert said in explained(pod("new", app(cpu=cpu, memory="1Gi"), **asked), **placement)


def test_where_there_are_no_classes_this_is_said() -> None:
    text = explained(pod("new", app(cpu="2"), core_class="performance"), MACHINE_A)
    assert "it requires performance cores, but all cores of this machine are of one kind" in text
    assert "What is missing see the message" in text
    assert "* let it prefer performance cores instead of requiring them" in text
    plain = explained(pod("new", app(cpu="2"), preferred_core_class="performance"), MACHINE_A)
    assert "performance" not in plain
