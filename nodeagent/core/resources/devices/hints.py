"""NUMA hints of the device manager, by kubelet's rules (devicemanager/topology_hints.go).

A set of NUMA nodes is a hint if enough allocatable devices are near its nodes. Sets are preferred if they have as few nodes as the request
would need if all devices were free.
"""

from collections.abc import Iterable, Sequence

from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa.hint_family import MAX_LISTED_NODES, HintFamily, Hints
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE, HintList, masks_by_size
from nodeagent.core.numa.node_search import Cover
from nodeagent.core.resources.devices.pools import DevicePool, PoolDevice

_MOST_LISTED = 8
"""Limit on NUMA nodes for listing all sets if some devices are near several nodes: 255 sets."""


def pool_hints(
    pool: DevicePool,
    every: NumaMask,
    request: int,
    available: Iterable[PoolDevice],
    reusable: Iterable[PoolDevice] = (),
) -> Hints:
    """Return the hints for a number of devices from a pool.

    Args:
        pool: all devices of the resource.
        every: all NUMA nodes of the machine.
        request: the number of requested devices.
        available: devices that can be allocated, or that the container already has.
        reusable: devices of the pod's init containers, which are allocated first. Every hint contains a node near each of them.
    """
    if not pool.has_topology:
        return DONT_CARE
    kept = [device for device in reusable if device.nodes is not None]
    givable = [*kept, *available]
    ids = [node for node in range(every.bit_length()) if every >> node & 1]
    several = [device for device in pool.devices if (device.nodes or 0).bit_count() > 1]
    is_additive = request == 1 and not kept
    if len(ids) <= (MAX_LISTED_NODES if not several or is_additive else _MOST_LISTED):
        return _list_hints(pool, ids, request, givable, kept) or UNSATISFIABLE
    if is_additive:
        return _describe_hints(
            every, ids, request, [_union_nodes(pool.devices, every)], [_union_nodes(givable, every)], []
        )
    return _describe_hints(
        every,
        ids,
        request,
        _list_lowest_nodes(pool.devices, every),
        _list_lowest_nodes(givable, every),
        _list_lowest_nodes(kept, every),
    )


def _list_hints(
    pool: DevicePool, ids: Sequence[int], request: int, givable: Sequence[PoolDevice], kept: Sequence[PoolDevice]
) -> HintList:
    there = [device.nodes or 0 for device in pool.devices]
    given, needed = [device.nodes or 0 for device in givable], [device.nodes or 0 for device in kept]
    masks = masks_by_size(ids)
    fewest = min(
        (mask.bit_count() for mask in masks if sum(1 for nodes in there if nodes & mask) >= request), default=len(ids)
    )
    return tuple(
        (mask, mask.bit_count() == fewest)
        for mask in masks
        if sum(1 for nodes in given if nodes & mask) >= request and all(nodes & mask for nodes in needed)
    )


def _union_nodes(devices: Iterable[PoolDevice], every: NumaMask) -> int:
    nodes = 0
    for device in devices:
        nodes |= device.nodes or 0
    return nodes & every


def _list_lowest_nodes(devices: Iterable[PoolDevice], every: NumaMask) -> list[int]:
    """Return the lowest NUMA node of each device, as a bit. Hints made from these nodes are correct, but some sets with other nodes are
    missing.
    """
    return [(nodes & -nodes) for device in devices if (nodes := (device.nodes or 0) & every)]


def _describe_hints(
    every: NumaMask, ids: Sequence[int], request: int, there: Sequence[int], given: Sequence[int], kept: Sequence[int]
) -> Hints:
    """Describe the hints if there are too many to list. Each number in the sequences has the nodes at which one device counts."""

    def counts(devices: Sequence[int]) -> list[int]:
        return [sum(1 for nodes in devices if nodes >> node & 1) for node in ids]

    needs = (request, len(kept)) if kept else (request,)
    amounts = zip(counts(given), counts(kept), strict=True) if kept else ((count,) for count in counts(given))
    cover = Cover(every, needs, tuple(zip(ids, (tuple(each) for each in amounts), strict=True)))
    if cover.is_empty:
        return UNSATISFIABLE
    most_first = sorted(counts(there), reverse=True)
    fewest = next((count for count in range(1, len(ids) + 1) if sum(most_first[:count]) >= request), len(ids))
    return HintFamily((), cover, preferred_count=fewest)
