"""prefer-most-allocated-numa-node by the rules and test suites of KEP-6007: each manager's score, how they combine, the merge."""

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from nodeagent.core.admission import managers as core
from nodeagent.core.admission.affinity_score import preferred_of_two
from nodeagent.core.admission.managers import Admitted, Managers
from nodeagent.core.model.config import Errata, Placement
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import NOTHING, Promises, with_pod
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.core.numa.hints import HintList, MergeRules, merge
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.memory.holdings import Block, MemoryHoldings
from tests.support.builders import GIB, machine, managers, pod
from tests.support.pods import app

ALPHA = (("TopologyManagerPolicyAlphaOptions", True),)
OPTION = (("prefer-most-allocated-numa-node", "true"),)
THREE = machine(nodes=3, cores=6, threads=1)
"""CPUs 0-5, 6-11 and 12-17. What is reserved is on node 2, unless a test says otherwise."""


def node(topology: Topology = THREE, *, on: bool = True, **more: Any) -> Managers:
    given: dict[str, Any] = {
        "reserved": "12",
        "gates": ALPHA,
        "topology_manager_policy": "single-numa-node",
        "topology_manager_policy_options": OPTION if on else (),
    }
    return managers(topology, **(given | more))


def holding(of: Managers, *, cpus: str = "", memory: tuple[tuple[str, int, int], ...] = ()) -> Promises:
    """A node where somebody has these CPUs, and memory: (nodes, bytes, bytes of huge pages)."""
    blocks = tuple(
        (
            f"c{i}",
            tuple(
                Block(NumaSet.parse(nodes), r, size)
                for r, size in (("hugepages-2Mi", pages), ("memory", plain))
                if size
            ),
        )
        for i, (nodes, plain, pages) in enumerate(memory)
    )
    sets = (("c0", CpuSet.parse(cpus)),) if cpus else ()
    return with_pod(core.initial(of), "other", NOTHING.having(CpuHoldings(cpus=sets), MemoryHoldings(memory=blocks)))


def chosen(of: Managers, promises: Promises, a: int = 0, b: int = 1) -> int | None:
    want = preferred_of_two(of.providers.resources, promises, a, b)
    assert want == preferred_of_two(of.providers.resources, promises, b, a), "the order of asking"
    return want


# Each manager's signal

CPU_SIGNALS = [
    ("nothing given away: undecided", "12", "", None),
    ("as much on both: undecided", "12", "0,6", None),
    ("1 of 6 (16 %) against none: the fuller", "12", "7", 1),
    ("3 of 6 (50 %) against 2 of 6 (33 %): the fuller", "12", "0-1,6-8", 1),
    ("2 of 6 against 2 of 4, as two are reserved: 33 % against 50 %", "6-7,12", "0-1,8-9", 1),
    ("2 of 4, as two are reserved, against 2 of 6: 50 % against 33 %", "0-1,12", "2-3,6-7", 0),
    ("2 of 6 against 1 of 2: fewer CPUs, yet the larger share", "6-9,12", "0-1,10", 1),
    ("all reserved: nothing could be given there", "6-11", "0", 0),
]


@pytest.mark.parametrize(
    ("reserved", "cpus", "expected"), [c[1:] for c in CPU_SIGNALS], ids=[c[0] for c in CPU_SIGNALS]
)
def test_cpu_signal(reserved: str, cpus: str, expected: int | None) -> None:
    of = node(reserved=reserved)
    assert chosen(of, holding(of, cpus=cpus)) == expected


def test_cpu_signal_of_another_policy_is_undecided() -> None:
    placement = Placement(topology_manager_policy="single-numa-node")
    of = core.build(THREE, placement)
    assert isinstance(of, Managers)
    assert chosen(of, holding(of, cpus="7")) is None


def test_cpus_held_twice_over_in_one_pod_count_once() -> None:
    """Init containers' sets overlap with those of the containers after them."""
    of = node()
    promises = core.initial(of)
    held = NOTHING.having(CpuHoldings(cpus=(("a", CpuSet.parse("0-1")), ("i", CpuSet.parse("0-1")))))
    promises = with_pod(promises, "p", held)
    assert chosen(of, with_pod(promises, "q", NOTHING.having(CpuHoldings(cpus=(("a", CpuSet.parse("6-8")),))))) == 1


def of_sizes(*gib: int) -> Topology:
    """THREE, with memory of these sizes."""
    return Topology.of(
        THREE.cpus, [NumaNode(n, size * GIB, (("hugepages-2Mi", 0),), (10,) * 3) for n, size in enumerate(gib)]
    )


MEMORY_SIGNALS: list[tuple[str, tuple[int, int, int], tuple[tuple[str, int, int], ...], int | None]] = [
    ("nothing given away: undecided", (10, 10, 9), (), None),
    ("2 of 10 GiB on both: undecided", (10, 10, 9), (("0", 2, 0), ("1", 2, 0)), None),
    ("2 of 10 GiB (20 %) against none", (10, 10, 9), (("1", 2, 0),), 1),
    ("2 of 8 GiB (25 %) against 2 of 4 GiB (50 %)", (8, 4, 9), (("0", 2, 0), ("1", 2, 0)), 1),
    ("3 of 10 against 2 of 4 GiB: fewer bytes, yet the larger share", (10, 4, 9), (("0", 3, 0), ("1", 2, 0)), 1),
    ("2 of 6 and 4 of 12 GiB: 33 % both", (6, 12, 9), (("0", 2, 0), ("1", 4, 0)), None),
    (
        "10 of 30 (33.3 %) and 61 of 180 GiB (33.8 %): whole percent tell nothing",
        (30, 180, 9),
        (("0", 10, 0), ("1", 61, 0)),
        None,
    ),
    ("huge pages don't count", (10, 10, 9), (("0", 2, 0), ("1", 1, 5)), 0),
    ("blocks on several nodes don't count", (10, 10, 9), (("0", 1, 0), ("1-2", 9, 0)), 0),
]


@pytest.mark.parametrize(
    ("sizes", "memory", "expected"), [c[1:] for c in MEMORY_SIGNALS], ids=[c[0] for c in MEMORY_SIGNALS]
)
def test_memory_signal(
    sizes: tuple[int, int, int], memory: tuple[tuple[str, int, int], ...], expected: int | None
) -> None:
    of = node(of_sizes(*sizes), reserved_memory={2: "1Gi"})
    held = tuple((nodes, plain * GIB, pages * GIB) for nodes, plain, pages in memory)
    assert chosen(of, holding(of, memory=held)) == expected


def test_memory_signal_counts_what_is_reserved_per_node() -> None:
    """2 GiB on both, of 8 GiB and of 8 less 4 GiB."""
    of = node(of_sizes(8, 8, 9), reserved_memory={1: "4Gi", 2: "1Gi"})
    assert chosen(of, holding(of, memory=(("0", 2 * GIB, 0), ("1", 2 * GIB, 0)))) == 1


def test_memory_signal_of_another_policy_is_undecided() -> None:
    of = node(of_sizes(10, 10, 10))
    assert chosen(of, holding(of, memory=(("1", 2 * GIB, 0),))) is None


# How they combine

COMBINED: list[tuple[str, str, tuple[str, ...], int | None]] = [
    ("neither decides", "", (), None),
    ("CPUs alone", "6", (), 1),
    ("CPUs alone, memory in balance", "6", ("0", "1"), 1),
    ("memory alone", "", ("1",), 1),
    ("memory alone, CPUs in balance", "0,6", ("1",), 1),
    ("they agree", "6", ("1",), 1),
    ("they agree on the other", "0", ("0",), 0),
    ("they disagree", "6", ("0",), None),
    ("they disagree, whatever the margin", "6-11", ("0",), None),
]


@pytest.mark.parametrize(("cpus", "memory", "expected"), [c[1:] for c in COMBINED], ids=[c[0] for c in COMBINED])
def test_combined(cpus: str, memory: tuple[str, ...], expected: int | None) -> None:
    of = node(of_sizes(10, 10, 10), reserved_memory={2: "1Gi"})
    assert chosen(of, holding(of, cpus=cpus, memory=tuple((nodes, GIB, 0) for nodes in memory))) == expected


# The merge

EVERY_NODE: HintList = ((0b001, True), (0b010, True), (0b100, True), (0b111, False))
SINGLE = MergeRules(0b111, single_node=True)


def test_the_wish_decides_between_equally_good_nodes() -> None:
    assert merge(SINGLE, [EVERY_NODE], max).mask == 0b100
    assert merge(SINGLE, [EVERY_NODE], lambda *_: None).mask == 0b001, "undecided: the lowest"
    assert merge(SINGLE, [EVERY_NODE], None).mask == 0b001, "nobody asked: the lowest"


def test_the_wish_makes_nothing_fit() -> None:
    """It never changes which hints are preferred, or whether a pod is admitted."""
    apart: HintList = ((0b001, True), (0b010, False))
    asked: list[tuple[int, int]] = []

    def want(a: int, b: int) -> int | None:
        asked.append((a, b))
        return b

    assert merge(SINGLE, [apart, EVERY_NODE], want).mask == 0b001
    assert merge(SINGLE, [apart, ((0b010, True),)], want) == merge(SINGLE, [apart, ((0b010, True),)])
    assert asked == []


def test_candidates_are_folded_in_ascending_order() -> None:
    """Wishes may go round in a circle; the order of the hints has no say."""
    circle = {(0, 1): 1, (1, 2): 2, (0, 2): 0}
    for hints in permutations(EVERY_NODE):
        found = merge(SINGLE, [hints], lambda a, b: circle[min(a, b), max(a, b)])
        assert found.mask == 0b100, "0 against 1 is 1, 1 against 2 is 2"


@given(st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_with_scores_of_one_manager_the_highest_wins_and_the_lowest_of_equals(scores: list[int]) -> None:
    def compare(a: int, b: int) -> int | None:
        return None if scores[a] == scores[b] else max(a, b, key=lambda n: scores[n])

    assert merge(SINGLE, [EVERY_NODE], compare).mask == 1 << scores.index(max(scores))


# Admission


def placed(of: Managers, *pods: Pod, since: Promises | None = None) -> list[str]:
    """Where each goes: its NUMA node, or why not."""
    promises, shown = since or core.initial(of), []
    for one in pods:
        decision = core.admit(of, promises, one)
        promises = decision.promises
        mask = promises.hint(one.uid, "a").mask
        shown.append(str(mask) if isinstance(decision, Admitted) else decision.reason.value)
    return shown


TWO = machine(nodes=2, cores=8, threads=1)


@pytest.mark.parametrize("errata", list(Errata))
@pytest.mark.parametrize(("on", "expected"), [(False, ["0", "TopologyAffinityError"]), (True, ["1", "0"])])
def test_small_pods_gather_and_leave_room_for_large_ones(errata: Errata, on: bool, expected: list[str]) -> None:
    """A pod of 7 CPUs is on node 1 when a small one comes, and then another of 7: the small one belongs beside the first."""
    of = node(TWO, on=on, reserved="0", errata=errata)
    filler, first = pod("filler", app("a", "1", "1Gi")), pod("first", app("a", "7", "1Gi"))
    promises = core.initial(of)
    for one in (filler, first):
        promises = core.admit(of, promises, one).promises
    promises, _ = core.remove_pod(of, promises, "filler")
    assert promises.hint("first", "a").mask == NumaSet.of(1)
    assert (
        placed(of, pod("small", app("a", "1", "1Gi")), pod("large", app("a", "7", "1Gi")), since=promises) == expected
    )


def test_other_policies_ignore_it() -> None:
    for policy in ("best-effort", "restricted"):
        of = node(TWO, reserved="0", topology_manager_policy=policy)
        assert placed(of, pod("a", app("a", "8", "1Gi")), pod("b", app("a", "2", "1Gi"))) == ["1", "0"]


def test_it_looks_at_what_was_given_before_this_container() -> None:
    """In container scope a container of the same pod counts, once it has its CPUs."""
    of = node(TWO, reserved="0")
    decision = core.admit(
        of, core.initial(of), pod("p", app("a", "8", "1Gi"), app("b", "2", "1Gi"), app("c", "1", "1Gi"))
    )
    assert isinstance(decision, Admitted)
    hints = [decision.promises.hint("p", name).mask for name in "abc"]
    assert hints == [NumaSet.of(1), NumaSet.of(0), NumaSet.of(0)]


def test_pod_scope_asks_once() -> None:
    of = node(TWO, reserved="0", topology_manager_scope="pod")
    pods = [pod("x", app("a", "8", "1Gi")), pod("y", app("a", "1", "1Gi"), app("b", "2", "1Gi"))]
    assert placed(of, *pods) == ["1", "0"]


def test_the_option_is_alpha() -> None:
    placement = node().placement
    refused = core.build(THREE, replace(placement, feature_gates=()))
    assert isinstance(refused, StartRefused)
    assert refused.message == (
        'Topology Manager Policy Alpha-level Options not enabled, but option "prefer-most-allocated-numa-node" provided'
    )
    false = replace(placement, topology_manager_policy_options=(("prefer-most-allocated-numa-node", "false"),))
    of = core.build(THREE, false)
    assert isinstance(of, Managers)
    assert not of.providers.topology.prefer_most_allocated
    wrong = replace(placement, topology_manager_policy_options=(("prefer-most-allocated-numa-node", "yes"),))
    refused = core.build(THREE, wrong)
    assert isinstance(refused, StartRefused)
    assert refused.message == (
        'bad value for option "prefer-most-allocated-numa-node": strconv.ParseBool: parsing "yes": invalid syntax'
    )
