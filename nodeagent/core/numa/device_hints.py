"""NUMA hints for pods that ask to be near devices (annotation `near`), by the rules of kubelet's device manager. Each set of NUMA nodes
that contains the node of a suitable device is a hint.

Single nodes are preferred. Devices whose node is unknown are ignored. If the nodes of all suitable devices are unknown, any node is
accepted. The devices aren't allocated, so any number of pods may be near the same device.
"""

from collections.abc import Collection

from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa.hint_family import MAX_LISTED_NODES, HintFamily, Hints
from nodeagent.core.numa.hints import DONT_CARE, masks_by_size
from nodeagent.core.numa.node_search import Cover


def device_hints(nodes: Collection[int | None], every: NumaMask) -> Hints:
    """Return the hints for one device name in the annotation, which may match several devices.

    Args:
        nodes: the NUMA node of each matching device, or None if the node is unknown.
        every: all NUMA nodes of the machine.
    """
    near_nodes = NumaMask(sum(1 << node for node in {*nodes} - {None} if node is not None) & every)
    if not near_nodes:
        return DONT_CARE
    ids = [node for node in range(every.bit_length()) if every >> node & 1]
    if len(ids) <= MAX_LISTED_NODES:
        return tuple((mask, mask.bit_count() == 1) for mask in masks_by_size(ids) if mask & near_nodes)
    cover = Cover(every, needs=(1,), amounts=tuple((node, (near_nodes >> node & 1,)) for node in ids))
    return HintFamily((), cover, preferred_count=1)
