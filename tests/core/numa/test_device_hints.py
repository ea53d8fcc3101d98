"""Hints of devices: those of kubelet's device manager for one device out of several, listed on small machines, described on large ones."""

from itertools import combinations

import pytest
from hypothesis import example, given, settings, strategies as st

from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa import hint_family
from nodeagent.core.numa.device_hints import device_hints
from nodeagent.core.numa.hint_family import HintFamily, Hints, merge_families
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE, HintList, Merged, MergeRules, merge
from nodeagent.core.numa.node_search import Cover, Steps
from nodeagent.core.numa.topology_manager import TopologyManager, build_topology_manager
from tests.support.builders import machine
from tests.support.shares import share_of

places = st.lists(st.none() | st.integers(0, 6), min_size=1, max_size=5)


def as_kubelet(nodes: list[int | None], ids: list[int]) -> HintList:
    """generateDeviceTopologyHints for a request of one: every set with a device, and of these the smallest are preferred."""
    if all(node is None for node in nodes):
        return DONT_CARE
    found: list[tuple[int, ...]] = []
    fewest = len(ids)
    for size in range(1, len(ids) + 1):
        for chosen in combinations(ids, size):
            if any(node in chosen for node in nodes):
                fewest = min(fewest, size)
                found.append(chosen)
    return tuple((NumaMask(sum(1 << node for node in chosen)), len(chosen) == fewest) for chosen in found)


def listing(hints: Hints, every: NumaMask) -> HintList:
    if not isinstance(hints, HintFamily):
        return hints
    assert hints.cover is not None
    masks = [NumaMask(mask) for mask in range(1, every + 1) if hints.cover.contains(NumaMask(mask))]
    return tuple((mask, hints.is_preferred(mask)) for mask in masks)


@given(places, st.integers(1, 7))
def test_they_are_those_of_kubelet(nodes: list[int | None], count: int) -> None:
    ids = list(range(count))
    here = [node if node is None or node < count else node % count for node in nodes]
    every = NumaMask((1 << count) - 1)
    found = device_hints(here, every)
    assert isinstance(found, HintFamily) == (count > hint_family.MAX_LISTED_NODES and found != DONT_CARE)
    assert sorted(listing(found, every), key=str) == sorted(as_kubelet(here, ids), key=str)


def test_ids_need_not_follow_each_other() -> None:
    assert device_hints([8], NumaMask(0b100000001)) == ((0b100000000, True), (0b100000001, False))


def test_a_device_of_an_unknown_node_is_near_nothing() -> None:
    assert device_hints([None, None], NumaMask(0b11)) == DONT_CARE
    assert device_hints([None, 1], NumaMask(0b11)) == ((0b10, True), (0b11, False))


@settings(max_examples=share_of(300))
@example(devices=[[3]], wanted=3, free=[0, 0, 0, 1, 0, 2, 2])  # the device gives up what CPUs could, too
@given(
    st.lists(places, min_size=1, max_size=2), st.integers(1, 20), st.lists(st.integers(0, 4), min_size=7, max_size=7)
)
def test_beside_cpus_and_memory_they_merge_as_their_lists(
    devices: list[list[int | None]], wanted: int, free: list[int]
) -> None:
    """On seven nodes: described as on any machine of that size, and listed as kubelet does."""
    every = NumaMask(0b1111111)
    amounts = tuple((node, (amount,)) for node, amount in enumerate(free))
    cover = Cover(every, (wanted,), amounts)
    hints: list[Hints] = [device_hints(nodes, every) for nodes in devices]
    hints += [((None, False),)] if cover.is_empty else [HintFamily((), cover, -(-wanted // 4))] * 2
    rules, steps = MergeRules(every, single_node=False), Steps(hint_family.MAX_STEPS)
    assert merge_families(rules, hints, steps) == merge(rules, [listing(each, every) for each in hints])
    assert not steps.are_over


def manager(count: int, *, policy: str = "best-effort", on: bool = True, closest: bool = False) -> TopologyManager:
    options = (("prefer-closest-numa-nodes", "true"),) if closest else ()
    placement = Placement(
        topology_manager_policy=policy, topology_manager_policy_options=options, prefer_cpus_numa_node=on
    )
    found = build_topology_manager(machine(nodes=count, cores=1), placement)
    assert isinstance(found, TopologyManager)
    return found


def test_the_example_for_which_it_was_asked() -> None:
    """CPUs say ['10' preferred, '11' not], a device ['01' …]: the result is '10', and not '01'."""
    cpus: HintList = ((0b10, True), (0b11, False))
    card: HintList = ((0b01, True), (0b11, False))
    rules = manager(2).rules
    assert merge(rules, [card, cpus]) == Merged(0b01, preferred=False)
    assert manager(2).despite_devices([card], cpus, [cpus, DONT_CARE]) == Merged(0b10, preferred=True)


@pytest.mark.parametrize(
    ("cpus", "memory", "devices", "expected"),
    [
        # Of several nodes the one that most devices are on, then the lower.
        (((0b001, True), (0b010, True), (0b100, True)), DONT_CARE, (0b010, 0b100), 0b010),
        (((0b001, True), (0b010, True), (0b100, True)), DONT_CARE, (0b010, 0b100, 0b100), 0b100),
        (((0b010, True), (0b100, True)), DONT_CARE, (0b001,), 0b010),
        # Memory is no device: it has to be there, or not to care.
        (((0b001, True), (0b010, True)), ((0b010, True), (0b111, False)), (0b100,), 0b010),
        (((0b001, True),), ((0b010, True),), (0b100,), None),
        (((0b001, True),), ((0b001, False),), (0b100,), None),
        (((0b001, True),), UNSATISFIABLE, (0b100,), None),
        # CPUs that want several nodes, that nobody asks for, or that there are too few of.
        (((0b011, True),), DONT_CARE, (0b100,), None),
        (((0b001, False),), DONT_CARE, (0b100,), None),
        (DONT_CARE, ((0b001, True),), (0b100,), None),
        (UNSATISFIABLE, DONT_CARE, (0b100,), None),
    ],
)
def test_a_node_that_the_rest_prefers(
    cpus: HintList, memory: HintList, devices: tuple[int, ...], expected: int | None
) -> None:
    lists = [((NumaMask(mask), True), (NumaMask(0b111), False)) for mask in devices]
    for policy in ("best-effort", "restricted"):
        found = manager(3, policy=policy).despite_devices(lists, cpus, [cpus, memory])
        assert found == (None if expected is None else Merged(NumaMask(expected), preferred=True))
        assert manager(3, policy=policy, on=False).despite_devices(lists, cpus, [cpus, memory]) is None
    assert manager(3, policy="single-numa-node").despite_devices(lists, cpus, [cpus, memory]) is None


@given(st.integers(1, 7), st.lists(places, min_size=1, max_size=3), st.data())
def test_listed_and_described_hints_have_the_same_node(
    count: int, devices: list[list[int | None]], data: st.DataObject
) -> None:
    every = NumaMask((1 << count) - 1)
    free = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    cover = Cover(every, (data.draw(st.integers(1, 6)),), tuple((node, (each,)) for node, each in enumerate(free)))
    cpus: Hints = UNSATISFIABLE if cover.is_empty else HintFamily((), cover, preferred_count=1)
    here = [[None if node is None else node % count for node in nodes] for nodes in devices]
    hints = [device_hints(nodes, every) for nodes in here]
    of = manager(count, closest=data.draw(st.booleans()))
    found = of.despite_devices(hints, cpus, [cpus])
    listed = of.despite_devices([listing(each, every) for each in hints], listing(cpus, every), [listing(cpus, every)])
    assert found == listed
    if found is not None:
        assert found.mask is not None
        assert free[found.mask.bit_length() - 1] >= cover.needs[0]
