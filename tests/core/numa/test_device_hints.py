"""Hints of devices: those of kubelet's device manager for one device out of several, listed on small machines, described on large ones."""

from itertools import combinations

from hypothesis import given, settings, strategies as st

from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa import hint_family
from nodeagent.core.numa.device_hints import device_hints
from nodeagent.core.numa.hint_family import HintFamily, Hints, merge_families
from nodeagent.core.numa.hints import DONT_CARE, HintList, MergeRules, merge
from nodeagent.core.numa.node_search import Cover, Steps

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


@settings(max_examples=300)
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
