"""NUMA hints of the device manager, as kubelet makes them (devicemanager/topology_hints.go).

A set of NUMA nodes is a hint if enough allocatable devices are near one of its nodes. Preferred are sets with as few nodes as would be
needed if all devices were free.
"""

from collections.abc import Iterable, Sequence

from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa.hint_family import MAX_LISTED_NODES, HintFamily, Hints
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE, HintList, masks_by_size
from nodeagent.core.numa.node_search import Cover
from nodeagent.core.resources.devices.pools import DevicePool, PoolDevice

_MOST_LISTED = 8
"""Limit on NUMA nodes whose sets are listed if devices are near several nodes each: 255 sets."""


def pool_hints(
    pool: DevicePool,
    every: NumaMask,
    request: int,
    available: Iterable[PoolDevice],
    reusable: Iterable[PoolDevice] = (),
) -> Hints:
    """Return the hints for some devices of a pool.

    Args:
        pool: all devices of the resource.
        every: all NUMA nodes of the machine.
        request: the number of requested devices.
        available: devices that can be allocated, or that the container already has.
        reusable: devices of the pod's init containers, which are allocated first. The set must contain their nodes.
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
        return _describe_hints(every, ids, request, [_any_of(pool.devices, every)], [_any_of(givable, every)], [])
    return _describe_hints(
        every,
        ids,
        request,
        _count_at_lowest(pool.devices, every),
        _count_at_lowest(givable, every),
        _count_at_lowest(kept, every),
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


def _any_of(devices: Iterable[PoolDevice], every: NumaMask) -> int:
    nodes = 0
    for device in devices:
        nodes |= device.nodes or 0
    return nodes & every


def _count_at_lowest(devices: Iterable[PoolDevice], every: NumaMask) -> list[int]:
    """Count a device near several nodes only at its lowest node. The hints miss some sets with other nodes, but none of them is wrong."""
    return [(nodes & -nodes) for device in devices if (nodes := (device.nodes or 0) & every)]


def _describe_hints(
    every: NumaMask, ids: Sequence[int], request: int, there: Sequence[int], given: Sequence[int], kept: Sequence[int]
) -> Hints:
    """Describe the hints if listing them takes too long. Each entry has the nodes where a device counts."""

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
