"""Hints of devices that are given: those of kubelet's device manager, listed on small machines and described on large ones."""

from itertools import combinations

import pytest
from hypothesis import given, settings, strategies as st

from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa.hint_family import HintFamily, Hints
from nodeagent.core.numa.hints import UNSATISFIABLE, HintList
from nodeagent.core.resources.devices.hints import pool_hints
from tests.support.shares import share_of


def pool(*nodes: int | None) -> DevicePool:
    """Each device near the nodes of this mask. None: nothing is said."""
    return DevicePool(
        "example.com/nic",
        tuple(PoolDevice(f"{n:02}", None if mask is None else NumaMask(mask)) for n, mask in enumerate(nodes)),
    )


def as_kubelet(there: DevicePool, ids: list[int], request: int, available: list[int], reusable: list[int]) -> HintList:
    """generateDeviceTopologyHints, word by word: masks by size, devices of any node in the mask."""
    fewest, found = len(ids), []
    for size in range(1, len(ids) + 1):
        for chosen in combinations(ids, size):
            mask = sum(1 << node for node in chosen)
            if sum(1 for device in there.devices if (device.nodes or 0) & mask) >= request:
                fewest = min(fewest, size)
            matching = 0
            for number in reusable:
                nodes = there.devices[number].nodes
                if nodes is None and not there.devices[number].lists_minus_one:
                    continue
                if not (nodes or 0) & mask:
                    break
                matching += 1
            else:
                matching += sum(1 for number in available if (there.devices[number].nodes or 0) & mask)
                if matching >= request:
                    found.append((NumaMask(mask), size))
    return tuple((mask, size == fewest) for mask, size in found) or UNSATISFIABLE


def listing(hints: Hints, ids: list[int]) -> HintList:
    if not isinstance(hints, HintFamily):
        return hints
    assert hints.cover is not None
    masks = [sum(1 << node for node in chosen) for size in range(1, len(ids) + 1) for chosen in combinations(ids, size)]
    return tuple((NumaMask(m), hints.is_preferred(NumaMask(m))) for m in masks if hints.cover.contains(NumaMask(m)))


@settings(max_examples=share_of(300), deadline=None)
@given(
    count=st.integers(1, 8),
    places=st.lists(st.none() | st.integers(0, 7), min_size=1, max_size=8),
    request=st.integers(1, 4),
    taken=st.sets(st.integers(0, 7)),
    lent=st.sets(st.integers(0, 7), max_size=2),
)
def test_they_are_kubelets_where_each_device_is_near_one_node(
    count: int, places: list[int | None], request: int, taken: set[int], lent: set[int]
) -> None:
    ids = list(range(count))
    there = pool(*(None if place is None or place >= count else 1 << place for place in places))
    reusable = [number for number in range(len(places)) if number in lent]
    available = [number for number in range(len(places)) if number not in taken | lent]
    hints = pool_hints(
        there,
        NumaMask((1 << count) - 1),
        request,
        [there.devices[n] for n in available],
        [there.devices[n] for n in reusable],
    )
    assert listing(hints, ids) == as_kubelet(there, ids, request, available, reusable)


@settings(max_examples=share_of(200), deadline=None)
@given(
    count=st.integers(1, 9),
    places=st.lists(st.integers(0, 511), min_size=1, max_size=6),
    request=st.integers(1, 3),
    taken=st.sets(st.integers(0, 5)),
)
def test_they_are_kubelets_where_devices_are_near_several_nodes(
    count: int, places: list[int], request: int, taken: set[int]
) -> None:
    """A plugin may say so."""
    every = (1 << count) - 1
    there = pool(*(place & every for place in places))
    available = [number for number in range(len(places)) if number not in taken]
    hints = pool_hints(there, NumaMask(every), request, [there.devices[n] for n in available])
    ids = list(range(count))
    assert listing(hints, ids) == as_kubelet(there, ids, request, available, [])


@pytest.mark.parametrize("request_", [1, 2])
def test_on_more_nodes_than_are_tabled_no_set_is_offered_that_kubelet_would_not_offer(request_: int) -> None:
    """Devices near several of more than 12 nodes count at their lowest, if more than one is asked for: some sets are missed."""
    there = pool(0b11, 0b110, 0b1000000000000)
    ids = list(range(13))
    hints = pool_hints(there, NumaMask(8191), request_, there.devices)
    kubelets = as_kubelet(there, ids, request_, [0, 1, 2], [])
    offered = {mask for mask, _ in listing(hints, ids)}
    assert offered <= {mask for mask, _ in kubelets}
    if request_ == 1:
        assert listing(hints, ids) == kubelets
    elsewhere = pool_hints(there, NumaMask(8191), request_, there.devices, [PoolDevice("far", NumaMask(1 << 20))])
    assert elsewhere == UNSATISFIABLE, "a reused device that is near no node of the machine rules out every set"


def test_a_device_without_nodes_counts_nowhere() -> None:
    beside = pool(1, None)
    assert pool_hints(beside, NumaMask(3), 2, beside.devices) == UNSATISFIABLE, "kubelet counts only those near a node"


@pytest.mark.parametrize(
    ("reused", "hints"),
    [
        (PoolDevice("nothing said"), ((NumaMask(1), True), (NumaMask(3), False))),
        (PoolDevice("no node", NumaMask(0)), UNSATISFIABLE),
        (PoolDevice("-1", NumaMask(0), lists_minus_one=True), UNSATISFIABLE),
        (PoolDevice("foreign", NumaMask(4)), UNSATISFIABLE),
        (PoolDevice("there", NumaMask(2)), ((NumaMask(2), True), (NumaMask(3), False))),
    ],
)
def test_every_set_is_near_each_reused_device_unless_nothing_is_said_of_it(reused: PoolDevice, hints: Hints) -> None:
    there = pool(1, 2)
    every = DevicePool(there.resource, (*there.devices, reused))
    free = [there.devices[0]] if hints != UNSATISFIABLE and reused.nodes is None else there.devices
    expected = as_kubelet(every, [0, 1], 1, [0] if free is not there.devices else [0, 1], [2])
    assert pool_hints(every, NumaMask(3), 1, free, [reused]) == hints == expected
