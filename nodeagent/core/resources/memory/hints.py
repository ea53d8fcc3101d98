"""NUMA hints of the memory manager. They are calculated from free memory or, if the memory is already allocated, derived from its nodes."""

from nodeagent.core.model.demand import Amounts, ContainerDemand, PodDemand
from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.numa.hint_family import Hints
from nodeagent.core.resources.memory.groups import calculate_hints
from nodeagent.core.resources.memory.holdings import MemoryHoldings
from nodeagent.core.resources.memory.manager import MemoryManager, regenerated
from nodeagent.core.resources.memory.pods import check_pod

MemoryHints = tuple[tuple[str, Hints], ...]
"""Hints by resource. The tuple is empty if the memory may be on any nodes or, as in kubelet, if no group of nodes has enough memory."""


def container_hints(
    manager: MemoryManager, promises: Promises, pod: PodDemand, container: ContainerDemand
) -> MemoryHints:
    amounts = container.memory
    if not manager.static or not pod.is_guaranteed or amounts is None or pod.is_skipped:
        return ()
    held = promises.of_pod(pod.uid)
    if held.of(MemoryHoldings).blocks(container.name) is not None:
        return _regenerate_hints(held, container.name, amounts)
    return _calculate_hints(manager, promises, pod.uid, amounts)


def pod_hints(manager: MemoryManager, promises: Promises, pod: PodDemand) -> MemoryHints:
    amounts = pod.memory
    if not manager.static or not pod.is_guaranteed or amounts is None or pod.is_skipped:
        return ()
    if pod.is_managed and check_pod(manager, pod) is not None:
        return tuple((resource, ()) for resource, _ in amounts)
    if not amounts:
        return ()
    held = promises.of_pod(pod.uid)
    if held.of(MemoryHoldings).memory and Erratum.POD_HINTS_FROM_FIRST_CONTAINER not in manager.quirks:
        return _make_hints_from_blocks(held, amounts)
    for container in pod.containers:
        if held.of(MemoryHoldings).blocks(container.name) is not None:
            return _regenerate_hints(held, container.name, amounts)
    return _calculate_hints(manager, promises, pod.uid, amounts)


def _make_hints_from_blocks(held: PodPromises, amounts: Amounts) -> MemoryHints:
    """Return one hint per resource, with the NUMA nodes of the memory that the pod's containers already have."""
    nodes: dict[str, NumaSet] = {}
    for _, blocks in held.of(MemoryHoldings).memory:
        for block in blocks:
            nodes[block.resource] = nodes.get(block.resource, NumaSet()) | block.nodes
    return tuple((resource, ((nodes[resource].bits, True),)) for resource, _ in amounts if resource in nodes)


def _regenerate_hints(held: PodPromises, name: str, amounts: Amounts) -> MemoryHints:
    nodes = regenerated(held, name, amounts)
    return () if nodes is None else tuple((resource, ((each.bits, True),)) for resource, each in nodes)


def _calculate_hints(manager: MemoryManager, promises: Promises, uid: str, amounts: Amounts) -> MemoryHints:
    hints = calculate_hints(manager.groups, promises, uid, amounts)
    return tuple((resource, hints) for resource, _ in amounts) if hints else ()
