"""NUMA hints of the device manager, by kubelet's rules (devicemanager/topology_hints.go).

A set of NUMA nodes is a hint if enough allocatable devices are near its nodes. The set is preferred if it has no more nodes than the
request would need if all devices were free.
"""

from collections.abc import Iterable, Sequence

from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa.hint_family import HintFamily, Hints
from nodeagent.core.numa.hint_table import MAX_TABLED_NODES, count_near, order_sets
from nodeagent.core.numa.hints import UNSATISFIABLE, HintList
from nodeagent.core.numa.node_search import Cover


def pool_hints(
    pool: DevicePool,
    every: NumaMask,
    request: int,
    available: Iterable[PoolDevice],
    reusable: Iterable[PoolDevice] = (),
) -> Hints:
    """Return the hints for a number of devices from a pool, some of whose devices have known NUMA nodes.

    Args:
        pool: all devices of the resource.
        every: all NUMA nodes of the machine.
        request: the number of requested devices.
        available: devices that can be allocated, or that the container already has.
        reusable: devices of the pod's init containers, which are allocated first. Each hint contains a node near each of these devices,
            unless the device has no known nodes.
    """
    kept = [device.nodes or 0 for device in reusable if device.nodes is not None or device.lists_minus_one]
    givable = [*kept, *(device.nodes or 0 for device in available)]
    every_device = [device.nodes or 0 for device in pool.devices]
    ids = tuple(node for node in range(every.bit_length()) if every >> node & 1)
    if len(ids) <= MAX_TABLED_NODES:
        return _list_hints(ids, request, every_device, givable, kept) or UNSATISFIABLE
    if any(not nodes & every for nodes in kept):
        return UNSATISFIABLE
    if request == 1 and not kept:
        return _describe_hints(every, ids, request, [_union(every_device, every)], [_union(givable, every)], [])
    # The hints are computed from the lowest NUMA node of each device. All of these hints are valid, but some valid hints with other nodes
    # are missing.
    found = ([nodes & every for nodes in devices] for devices in (every_device, givable, kept))
    lowest = ([nodes & -nodes for nodes in devices] for devices in found)
    return _describe_hints(every, ids, request, *lowest)


def _list_hints(
    ids: tuple[int, ...], request: int, every_device: Sequence[int], givable: Sequence[int], kept: Sequence[int]
) -> HintList:
    there, near, kept_near = (count_near(devices, ids) for devices in (every_device, givable, kept))
    sets = order_sets(ids)
    fewest = min((mask.bit_count() for index, mask in sets if there[index] >= request), default=len(ids))
    return tuple(
        (mask, mask.bit_count() == fewest)
        for index, mask in sets
        if near[index] >= request and kept_near[index] == len(kept)
    )


def _union(devices: Iterable[int], every: NumaMask) -> int:
    nodes = 0
    for each in devices:
        nodes |= each
    return nodes & every


def _describe_hints(
    every: NumaMask,
    ids: Sequence[int],
    request: int,
    pool_nodes: Sequence[int],
    givable_nodes: Sequence[int],
    kept_nodes: Sequence[int],
) -> Hints:
    """Return the hints as conditions (`HintFamily`) instead of a list, because there are too many sets of nodes to list. Each element of
    `pool_nodes`, `givable_nodes` and `kept_nodes` is the mask of the NUMA nodes near one device.
    """

    def counts(devices: Sequence[int]) -> list[int]:
        return [sum(1 for nodes in devices if nodes >> node & 1) for node in ids]

    needs = (request, len(kept_nodes)) if kept_nodes else (request,)
    amounts = (
        zip(counts(givable_nodes), counts(kept_nodes), strict=True)
        if kept_nodes
        else ((count,) for count in counts(givable_nodes))
    )
    cover = Cover(every, needs, tuple(zip(ids, (tuple(each) for each in amounts), strict=True)))
    if cover.is_empty:
        return UNSATISFIABLE
    most_first = sorted(counts(pool_nodes), reverse=True)
    fewest = next((count for count in range(1, len(ids) + 1) if sum(most_first[:count]) >= request), len(ids))
    return HintFamily((), cover, preferred_count=fewest)
