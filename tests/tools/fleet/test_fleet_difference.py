"""What differs between nodes that should be alike: each node is in one group of each fact, and equal nodes are in the same."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Cache, Topology
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.tools.fleet.differences import describe_differences
from nodeagent.tools.fleet.nodes import FleetNode, UnreadNode
from nodeagent.tools.fleet.text import render_difference
from tests.support import json_schema
from tests.support.fleets import FILES, node
from tests.support.inspected_nodes import machine
from tests.support.shares import share_of


def differing(*nodes: FleetNode) -> dict[str, list[tuple[str, list[str]]]]:
    document = describe_differences(nodes)
    json_schema.check(document, "fleet-difference")
    return {
        f"{found['about']}: {found['fact']}": [(group["value"], group["nodes"]) for group in found["groups"]]
        for found in document["differing"]
    }


def test_equal_nodes_are_alike_in_everything() -> None:
    document = describe_differences([node("a"), node("b")])
    assert document["differing"] == []
    assert {found["about"] for found in document["alike"]} == {"machine", "kernel", "services", "configuration"}
    assert render_difference(document) == f"2 nodes are alike in all of {len(document['alike'])} facts\n"


_BEST_EFFORT = Placement("static", reserved_system_cpus=CpuSet.of(0), topology_manager_policy="best-effort")
_OPTION = Placement(
    "static", reserved_system_cpus=CpuSet.of(0), cpu_manager_policy_options=(("full-pcpus-only", "true"),)
)


def with_file(path: str, text: str) -> dict[str, str]:
    return FILES | {path: text}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"kernel": "6.12"}, {"kernel: release": ("6.1.0-28-amd64", "6.12")}),
        (
            {"topology": machine("7")},
            {
                "machine: CPUs": ("8 (0-7)", "7 (0-6)"),
                "machine: offline CPUs": ("none", "7"),
                "machine: cores": ("4 of 2 threads", "1 of 1 thread, 3 of 2 threads"),
                "machine: NUMA nodes": ("0: 0-1,4-5; 1: 2-3,6-7", "0: 0-1,4-5; 1: 2-3,6"),
                "machine: L3 caches": ("2 for 4 CPUs each", "1 for 4 CPUs, 1 for 3 CPUs"),
            },
        ),
        ({"placement": _BEST_EFFORT}, {"configuration: topologyManagerPolicy": ("none", "best-effort")}),
        (
            {"placement": _OPTION},
            {"configuration: cpuManagerPolicyOptions.full-pcpus-only": ("not set", "true")},
        ),
        (
            {"placement": Placement("static", reserved_system_cpus=CpuSet.parse("0,4"))},
            {"configuration: reserved CPUs": ("0", "0,4")},
        ),
        (
            {"files": with_file("proc/cmdline", "hugepagesz=1G hugepages=4 nosmt\n")},
            {"kernel: parameter isolcpus": ("4-7", "not set"), "kernel: parameter nosmt": ("not set", "given")},
        ),
        (
            {"files": with_file("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave\n")},
            {"kernel: frequency governor": ("performance", "performance (0-2,4-7), powersave (3)")},
        ),
        (
            {"files": with_file("sys/fs/cgroup/system.slice/irqbalance.service/cgroup.events", "populated 0\n")},
            {"services: irqbalance": ("runs", "none")},
        ),
        ({"with_agent": False}, {"services: the agent": ("runs", "none")}),
    ],
)
def test_each_difference_is_named_with_both_values(other: dict[str, Any], expected: dict[str, tuple[str, str]]) -> None:
    found = differing(node("a"), node("b"), node("odd", **other))
    assert found == {name: [(most, ["a", "b"]), (less, ["odd"])] for name, (most, less) in expected.items()}


def test_caches_are_told_by_number_size_and_sharers() -> None:
    small = machine()
    cached = Topology.of(
        small.cpus, small.numa, caches=[Cache(2, "unified", CpuSet.of(c, c + 4), 2**20) for c in range(4)]
    )
    found = differing(node("a", topology=small), node("b", topology=cached))
    assert found["machine: L2 caches"] == [("none", ["a"]), ("4 of 1.0 MiB for 2 CPUs each", ["b"])]


def of_size(name: str, memory: str) -> FleetNode:
    return FleetNode(name, name, topology_from_spec(f"2s.2c,memory={memory}"))


def test_memory_that_the_kernel_leaves_may_differ_a_little() -> None:
    assert differing(of_size("a", "64Gi"), of_size("b", "63.5Gi")) == {}
    found = differing(of_size("a", "64Gi"), of_size("b", "63.5Gi"), of_size("c", "63Gi"))
    assert found == {"machine: memory of NUMA nodes": [("63.0 GiB on each", ["b", "c"]), ("64.0 GiB on each", ["a"])]}


def test_of_a_machine_alone_only_the_machine_is_compared() -> None:
    alone = FleetNode("b", "b.json", machine())
    document = describe_differences([node("a"), alone])
    assert {found["about"] for found in document["alike"]} == {"machine"}
    assert document["differing"] == []


@settings(max_examples=share_of(50))
@given(
    st.lists(
        st.tuples(st.sampled_from(["6.1", "6.12"]), st.sampled_from(["64Gi", "32Gi", "63.9Gi"])), min_size=2, max_size=9
    )
)
def test_every_node_is_in_one_group_and_equal_nodes_in_the_same(kinds: list[tuple[str, str]]) -> None:
    nodes = [
        replace(node(f"n{at}", kernel=kernel), topology=topology_from_spec(f"2s.2c,memory={memory}"))
        for at, (kernel, memory) in enumerate(kinds)
    ]
    document = describe_differences(nodes)
    for found in document["differing"]:
        groups = [group["nodes"] for group in found["groups"]]
        assert sorted(name for group in groups for name in group) == sorted(one.name for one in nodes)
        assert [len(group) for group in groups] == sorted(map(len, groups), reverse=True)
        assert len({group["value"] for group in found["groups"]}) == len(groups)
        group_of = {name: at for at, group in enumerate(groups) for name in group}
        for one, kind in zip(nodes, kinds, strict=True):
            assert group_of[one.name] == group_of[nodes[kinds.index(kind)].name]
    assert ("kernel: release" in differing(*nodes)) == (len({kernel for kernel, _ in kinds}) > 1)
    memories = {memory == "32Gi" for _, memory in kinds}
    assert ("machine: memory of NUMA nodes" in differing(*nodes)) == (len(memories) > 1)


def test_twenty_nodes_read_well_in_80_columns() -> None:
    odd = {7: {"kernel": "6.1.0-26-amd64"}, 12: {"placement": _BEST_EFFORT, "kernel": "6.1.0-26-amd64"}}
    nodes = [node(f"node{number:02}", **odd.get(number, {})) for number in range(1, 21)]
    text = render_difference(describe_differences(nodes, [UnreadNode("x", "why", "hint")]))
    assert (
        text.partition("\n")[2]
        == """
kernel: release
  18 nodes        6.1.0-28-amd64
  node07, node12  6.1.0-26-amd64

configuration: topologyManagerPolicy
  19 nodes  none
  node12    best-effort

differing from most: node12 (2), node07 (1)
"""
    )


def test_where_as_many_are_like_each_other_nobody_is_odd() -> None:
    document = describe_differences([node("a"), node("b", kernel="6.12")])
    assert [each["odd"] for each in document["nodes"]] == [0, 0]
    assert "unlike" not in render_difference(document)


def test_a_cache_of_cpus_that_nobody_lists_is_none() -> None:
    """A described machine may name them."""
    small = machine()
    stray = Topology.of(small.cpus, small.numa, l3=[*small.l3, CpuSet.of(99)])
    assert differing(FleetNode("a", "a", small), FleetNode("b", "b", stray)) == {}
