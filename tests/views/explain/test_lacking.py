"""What of several NUMA nodes is told as lacking: in all, then of each, those that come nearest first."""

from itertools import accumulate

import pytest

from nodeagent.core.admission.managers import Managers, build, initial
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.numa_headroom import NodeHeadroom
from nodeagent.core.explain.remedies import remedies
from nodeagent.core.explain.trace import trace
from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.cpu.explainer import CpuHeadroom
from nodeagent.core.resources.memory.explainer import FreeMemory, MemoryHeadroom
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.views.explain.lacking import MOST_NODES, ResourceDemand, format_node_count
from nodeagent.views.explain.resources.by_resource import describe_shortages
from nodeagent.views.explain.resources.cpu import CpuDemand
from nodeagent.views.explain.resources.memory import MemoryDemand
from nodeagent.views.explain.words import explain_refusal, format_remedy
from tests.support.builders import GIB, MACHINE_A, PLRM, managers, pod
from tests.support.pods import app, exclusive, shared


def headroom(node: int, *, free: int, of: int, memory: tuple[int, int] | None = None) -> NodeHeadroom:
    """A node with so many CPUs free, and so many GiB of memory of so many, if its memory is managed."""
    tables = () if memory is None else (FreeMemory("memory", memory[1] * GIB, memory[0] * GIB),)
    cpus = CpuSet.from_ids(range(node * of, (node + 1) * of))
    own = CpuHeadroom(
        cpus=cpus,
        free=CpuSet.from_ids(list(cpus)[:free]),
        whole_cores=free,
        split=CpuSet(),
        whole_caches=0,
        caches=0,
        reserved=CpuSet(),
        holders=(),
    )
    return NodeHeadroom(node, (own, MemoryHeadroom(tables, None)))


def demands_for(cpus: int, gib: int, nodes: list[NodeHeadroom]) -> list[ResourceDemand]:
    """As on nodes where nobody is."""
    memory = [each for node in nodes for each in node.of(MemoryHeadroom).amounts]
    demands: list[ResourceDemand] = []
    if cpus:
        demands.append(CpuDemand(cpus, _fewest(cpus, [len(node.of(CpuHeadroom).cpus) for node in nodes])))
    if gib and memory:
        demands.append(
            MemoryDemand("memory", gib * GIB, _fewest(gib * GIB, [each.allocatable_bytes for each in memory]))
        )
    return demands


def _fewest(amount: int, sizes: list[int]) -> int:
    return min(1 + sum(1 for together in accumulate(sorted(sizes, reverse=True)) if together < amount), len(sizes))


@pytest.mark.parametrize(
    ("cpus", "gib", "nodes", "where", "reported"),
    [
        (
            4,
            0,
            [headroom(0, free=1, of=4), headroom(1, free=3, of=4), headroom(2, free=4, of=4)],
            "on a single NUMA node",
            ["NUMA 1: 3 CPUs free of 4, 1 short", "NUMA 0: 1 CPU free of 4, 3 short"],
        ),
        (
            4,
            0,
            [headroom(0, free=1, of=4), *(headroom(node, free=0, of=0) for node in range(1, 12))],
            "on a single NUMA node",
            ["NUMA 0: 1 CPU free of 4, 3 short", "NUMA 1-11: no CPUs"],
        ),
        (
            9,
            0,
            [headroom(0, free=4, of=4), headroom(1, free=2, of=4)],
            "on 2 NUMA nodes, the fewest that could hold it",
            ["6 CPUs can still be allocated in total: 3 short", "NUMA 1: 2 CPUs free of 4"],
        ),
        (
            10,
            0,
            [headroom(0, free=2, of=4), headroom(1, free=4, of=8), headroom(2, free=8, of=8)],
            "on 2 NUMA nodes, the fewest that could hold it",
            ["NUMA 0: 2 CPUs free of 4", "NUMA 1: 4 CPUs free of 8"],
        ),
        (
            0,
            12,
            [headroom(0, free=4, of=4, memory=(6, 8)), headroom(1, free=4, of=4, memory=(0, 8))],
            "on 2 NUMA nodes, the fewest that could hold it",
            [
                "6Gi of memory can still be allocated in total: 6Gi short",
                "NUMA 0: 6Gi of memory free, of 8Gi",
                "NUMA 1: 0 of memory free, of 8Gi",
            ],
        ),
        (
            4,
            99,
            [headroom(0, free=0, of=4), headroom(1, free=4, of=4)],
            "on a single NUMA node",
            ["NUMA 0: 0 CPUs free of 4, 4 short"],
        ),
        (
            1,
            3,
            [headroom(0, free=0, of=4), headroom(1, free=0, of=4, memory=(2, 8))],
            "on a single NUMA node",
            [
                "NUMA 0: 0 CPUs free of 4, 1 short",
                "NUMA 1: 0 CPUs free of 4, 1 short; 2Gi of memory free, 1Gi short",
                "NUMA 0: no memory",
            ],
        ),
    ],
    ids=[
        "on one",
        "on one beside many without CPUs",
        "more than all have",
        "on two of unlike nodes",
        "memory of two",
        "memory that is not managed",
        "memory that one has not",
    ],
)
def test_what_is_lacking(cpus: int, gib: int, nodes: list[NodeHeadroom], where: str, reported: list[str]) -> None:
    demands = demands_for(cpus, gib, nodes)
    assert format_node_count(demands) == where
    assert list(describe_shortages(demands, nodes)) == reported


@pytest.mark.parametrize(
    ("more", "end"), [(0, None), (1, "and 1 NUMA node that has less"), (2, "and 2 NUMA nodes that have less")]
)
def test_of_many_nodes_the_nearest_are_reported(more: int, end: str | None) -> None:
    nodes = [headroom(node, free=node, of=MOST_NODES + more) for node in range(MOST_NODES + more)]
    reported = list(describe_shortages([CpuDemand(MOST_NODES + more, 1)], nodes))
    assert reported[0].startswith(f"NUMA {MOST_NODES + more - 1}: ")
    assert reported[MOST_NODES:] == ([] if end is None else [end])


@pytest.mark.parametrize("policy", ["best-effort", "restricted"])
def test_memory_that_is_not_read_as_whole_bytes_is_named(policy: str) -> None:
    node = managers(
        MACHINE_A, errata=Errata.KUBELET_1_36, gates=PLRM, topology_manager_scope="pod", topology_manager_policy=policy,
        reserved_memory={0: "1Gi"},
    )  # fmt: skip
    before = WhatIf.of(node, initial(node))
    one = pod("p", app("a", "1", "1.5Gi"), shared("b"), resources=exclusive("2", "4Gi"))
    said = explain_refusal(before, trace(before, one))
    assert said[-1] == (
        "container a requests memory with a decimal point, an m or too many digits, which is not read as whole bytes: write 1536Mi"
    )


def test_cores_of_several_sizes_are_told_by_size_and_a_number_that_the_free_ones_have_is_offered() -> None:
    """The average has one CPU a core, and only cores of two are free."""
    topology = topology_from_spec("2c.2t.4e")
    node = build(topology, placement_of("4-7"))
    assert isinstance(node, Managers)
    before = WhatIf.of(node, initial(node))
    one = pod("p", app("c", "1", "1Gi"))
    assert explain_refusal(before, trace(before, one))[:2] == [
        "container c wants 1 CPU, and full-pcpus-only allocates only whole cores: 2 cores of 2 CPUs, 4 cores of 1 CPU",
        "completely free: 2 cores of 2 CPUs, of 4 free CPUs in total",
    ]
    assert [format_remedy(remedy) for remedy in remedies(before, one).found] == [
        "let container c request cpu 2 instead of 1",
        "set cpuManagerPolicyOptions without full-pcpus-only",
    ]
    uneven = build(topology_from_spec("3c.4t").without(CpuSet.of(3, 6)), placement_of("0"))
    assert isinstance(uneven, Managers)
    before = WhatIf.of(uneven, initial(uneven))
    odd, many = (pod("p", app("c", count, "1Gi")) for count in ("5", "12"))
    assert explain_refusal(before, trace(before, odd)) == [
        "container c wants 5 CPUs, and full-pcpus-only allocates only whole cores: 2 cores of 4 CPUs, 1 core of 2 CPUs",
        "5 is not a sum of these",
    ]
    assert explain_refusal(before, trace(before, many))[1] == "all cores together have 10 CPUs"


def placement_of(reserved: str) -> Placement:
    return Placement("static", (("full-pcpus-only", "true"),), CpuSet.parse(reserved))
