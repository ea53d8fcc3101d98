"""Which CPUs: kubelet's packed, spread, uncore-aligned and distributed orders, by the worked examples of its specification."""

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.resources.cpu.assignment import Picking, pick
from nodeagent.core.resources.cpu.distribution import Distributing, distribute
from nodeagent.core.resources.cpu.layout import CpuLayout
from nodeagent.core.resources.cpu.points import CpuShortage
from tests.support.builders import MACHINE_A, MACHINE_B, machine

LAYOUT_A, LAYOUT_B = CpuLayout.of(MACHINE_A), CpuLayout.of(MACHINE_B)


def picked(picking: Picking, available: str, count: int) -> str:
    result = pick(picking, CpuSet.parse(available).bits, count)
    return result.message if isinstance(result, CpuShortage) else str(CpuSet(result))


PACKED = [
    ("0-15", 2, "0,8", "one core"),
    ("0-15", 3, "0-1,8", "one core, then the first CPU of the next"),
    ("1-15", 1, "8", "the fuller node, the core with one free CPU"),
    ("1-15", 8, "4-7,12-15", "a whole node"),
    ("1-15", 10, "1,4-7,9,12-15", "a whole node, then a whole core of the other"),
    ("0-3,8-9,12-15", 4, "0-1,8-9", "node 1 has four single CPUs, but whole cores are on node 0"),
    ("0-1,4-7,9,12-15", 3, "0-1,9", "a whole core, then a single CPU"),
    ("0-15", 0, "", "nothing asked for"),
    ("0-3", 5, "not enough cpus available to satisfy request: requested=5, available=4", "too few"),
]


@pytest.mark.parametrize(("available", "count", "expected"), [c[:3] for c in PACKED], ids=[c[3] for c in PACKED])
@pytest.mark.parametrize("averages", [False, True])
def test_packed(available: str, count: int, expected: str, averages: bool) -> None:
    assert picked(Picking(LAYOUT_A, averages=averages), available, count) == expected


def test_a_shortage_says_what_is_there_in_whole_cores() -> None:
    expected = "not enough cpus available to satisfy request: requested=4, available=2"
    assert picked(Picking(LAYOUT_A, whole_cores=True), "0-7,8", 4) == expected


def test_averages_are_per_group() -> None:
    layout = CpuLayout.of(machine(nodes=4, cores=2, sockets=2, cores_per_uncore=2))
    assert (layout.per_core, layout.per_socket, layout.per_uncore) == (2, 8, 4)


@pytest.mark.parametrize(("count", "expected"), [(8, "0-3,8-11"), (4, "0-3"), (9, "0-4,8-11")])
def test_spread_takes_no_cores_but_whole_sockets(count: int, expected: str) -> None:
    assert picked(Picking(LAYOUT_A, spread=True), "0-15", count) == expected


UNCORE = [
    ("1-15", 4, "2-3,10-11", "1-2,9-10"),
    ("1-15", 5, "2-3,8,10-11", "1-2,8-10"),
    ("1-15", 3, "1,8-9", "1,8-9"),
    ("0,2-15", 4, "2-3,10-11", "0,2,8,10"),
    ("2,4-7,10,12-15", 3, "4-5,12", "2,4,10"),
]


@pytest.mark.parametrize(("available", "count", "aligned", "packed"), UNCORE)
def test_uncore_caches(available: str, count: int, aligned: str, packed: str) -> None:
    assert picked(Picking(LAYOUT_B, align_uncore=True), available, count) == aligned
    assert picked(Picking(LAYOUT_B), available, count) == packed


def distributed(layout: CpuLayout, available: str, count: int, size: int = 1, *, overwritten: bool = False) -> str:
    result = distribute(Distributing(Picking(layout), size, overwritten), CpuSet.parse(available).bits, count)
    return result.message if isinstance(result, CpuShortage) else str(CpuSet(result))


DISTRIBUTED = [
    ("0-15", 8, 1, "0-3,8-11", "one node is enough"),
    ("0-15", 9, 1, "0-2,4-5,8-9,12-13", "four each, the odd one from the first of equals"),
    ("0-15", 10, 1, "0-2,4-6,8-9,12-13", "five each"),
    ("0-15", 10, 2, "0-2,4-5,8-10,12-13", "whole cores"),
    ("0-15", 9, 2, "0-4,8-11", "no multiple of the group: packed"),
    ("1-15", 9, 1, "1-2,4-6,9-10,12-13", "the odd one from the fuller node"),
]


@pytest.mark.parametrize(
    ("available", "count", "size", "expected"), [c[:4] for c in DISTRIBUTED], ids=[c[4] for c in DISTRIBUTED]
)
@pytest.mark.parametrize("overwritten", [False, True])
def test_distributed(available: str, count: int, size: int, expected: str, overwritten: bool) -> None:
    assert distributed(LAYOUT_A, available, count, size, overwritten=overwritten) == expected


def test_overwritten_combinations() -> None:
    """Erratum 7: with five and more nodes the reference uses another combination than it chose."""
    layout = CpuLayout.of(machine(nodes=8, cores=2, sockets=2))
    assert distributed(layout, "0-31", 15) == "0-7,16-22"
    assert distributed(layout, "0-31", 15, overwritten=True) == "0-5,14-21,30"


def test_groups_that_nobody_can_absorb_end_the_search() -> None:
    """Erratum 8: the reference loops for ever here."""
    layout = CpuLayout.of(machine(nodes=4, cores=4))
    available = str(CpuSet.from_ids(range(32)) - CpuSet.of(0, 4, 8, 12))
    result = distribute(Distributing(Picking(layout), 2), CpuSet.parse(available).bits, 22)
    assert isinstance(result, int)
    assert CpuSet(result) <= CpuSet.parse(available)
    assert len(CpuSet(result)) == 22


HYBRID = CpuLayout.of(Topology.of([Cpu(c, c // 2 * 2 if c < 8 else c, 0, 0) for c in range(16)], [NumaNode(0, 0)]))
"""Four cores of two CPUs (0-7) and eight of one (8-15): an average core has one."""


def test_asymmetric_cores() -> None:
    """Erratum 9: by averages a core with one of its two CPUs free is whole, and both are taken."""
    assert picked(Picking(HYBRID, averages=True), "1-15", 2) == "0-1"
    assert picked(Picking(HYBRID), "1-15", 2) == "8-9"


machines = st.builds(
    machine,
    nodes=st.sampled_from([1, 2, 3, 4]),
    cores=st.sampled_from([1, 2, 3, 4]),
    threads=st.sampled_from([1, 2]),
    cores_per_uncore=st.sampled_from([None, 1, 2]),
)


@given(
    machines, st.integers(0, 2**32 - 1), st.integers(0, 40), st.booleans(), st.booleans(), st.sampled_from([None, 1, 2])
)
def test_what_is_picked_was_free_and_is_as_much_as_asked(
    topology: Topology, bits: int, count: int, spread: bool, align: bool, size: int | None
) -> None:
    layout = CpuLayout.of(topology)
    available = bits & topology.online.bits
    picking = Picking(layout, spread=spread, align_uncore=align)
    result = (
        pick(picking, available, count) if size is None else distribute(Distributing(picking, size), available, count)
    )
    if count > available.bit_count():
        assert isinstance(result, CpuShortage)
    else:
        assert isinstance(result, int)
        assert result & ~available == 0
        assert result.bit_count() == count
