"""What an explanation says of a pod that asks for a NUMA node: what that node lacks, and which other change would admit it."""

from typing import Any

import pytest

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.views.explain.text import render_explanation
from tests.support.builders import admitted, managers
from tests.support.explained_pods import explained_pod
from tests.support.pods import app, pod

BOOKS: dict[str, Any] = {"reserved_memory": {0: "1Gi"}}


def explained(of: Pod, **placement: Any) -> str:
    """On a node where 2 of 8 CPUs of NUMA 1 are left, and 6 of NUMA 0."""
    node = managers(**placement)
    there = pod("there", app(cpu="6", memory="1Gi"), numa_node=1)
    before = WhatIf.of(node, admitted(node, there), (there,))
    document = explained_pod(before, of, Config(node.placement))
    assert document["pods"][0]["numaNode"] == of.numa_node
    return " ".join(render_explanation(document).split())


@pytest.mark.parametrize(
    ("cpu", "memory", "node", "placement", "said"),
    [
        ("2", "1Gi", 1, {}, "all its memory (memory isn't managed: memoryManagerPolicy is None)"),
        ("2", "1Gi", 1, {}, "2 of 2 free on NUMA 1: 7,15"),
        ("2", "1Gi", 1, BOOKS, "it requires NUMA node 1 for its exclusive CPUs and all its memory app"),
        ("4", "1Gi", 1, {}, "wants 4 CPUs exclusively on the required NUMA node 1, and 2 can still be allocated: 2 short NUMA 1: 2 of 8"),
        ("4", "1Gi", 1, {}, "* let container app request cpu 2 instead of 4 * let it require NUMA 0 instead of NUMA 1"),
        ("7", "1Gi", 1, {}, "* let it require no NUMA node instead of NUMA 1"),
        ("4", "1Gi", 1, {"topology_manager_policy": "restricted"}, "wants 4 CPUs on the required NUMA node 1 (topology"),
        ("4", "1Gi", 1, {"topology_manager_policy": "restricted"}, "NUMA 1: 2 CPUs free of 8, 2 short (default/there app has"),
        ("9", "1Gi", 1, {"topology_manager_policy": "restricted"}, "the node is not large enough: it has 8 CPUs"),
        ("2", "8Gi", 1, BOOKS, "wants 8Gi of memory on the required NUMA node 1 7Gi of memory can still be allocated in total: 1Gi short"),
        ("500m", "1Gi", 1, {}, "container app has no exclusive CPUs: its CPU request is not a whole number"),
        ("2", "1Gi", 7, {}, "it requires NUMA node 7, but the NUMA nodes of this machine are 0-1"),
        ("2", "1Gi", 7, {}, "* let it require NUMA 0 instead of NUMA 7"),
    ],
)  # fmt: skip
def test_what_is_said(cpu: str, memory: str, node: int, placement: dict[str, Any], said: str) -> None:
    assert said in explained(pod("new", app(cpu=cpu, memory=memory), numa_node=node), **placement)
