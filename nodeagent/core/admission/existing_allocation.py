"""Renewed admission of pods that already hold all requested resources, for instance after a restart of the agent, or on a node that kubelet
managed before.

Such a pod keeps its allocation and is never refused. kubelet behaves differently (Erratum.POD_ALLOCATED_AGAIN and the errata after it).
"""

from collections.abc import Sequence

from nodeagent.core.metrics.manager_metrics import MetricDeltas
from nodeagent.core.model.demand import PodDemand
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Hint, PodPromises
from nodeagent.core.numa.topology_manager import Scope, TopologyManager
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.memory.holdings import MemoryHoldings
from nodeagent.core.resources.resource import Resource


def holds_all(
    managers: Sequence[Resource], held: PodPromises, pod: PodDemand, *, by_pod: bool, is_running: bool
) -> bool:
    """Return whether a pod already holds all requested resources. Init containers that aren't sidecars are ignored unless the pod has no
    other containers, because they may have ended and released their resources.

    Args:
        managers: the resource managers of the node.
        held: the pod's allocation.
        pod: the pod's demand.
        by_pod: whether one allocation is made to the whole pod, and its containers divide it.
        is_running: whether the pod was admitted before the agent's start.
    """
    if pod.is_skipped:
        # The pod gets no new allocation, and keeps its holdings from before its feature gate was turned off (KEP-5526).
        return held.of(CpuHoldings) != CpuHoldings() or held.of(MemoryHoldings) != MemoryHoldings()
    if by_pod:
        return bool(held.holders) and all(manager.has_pod(held, pod) for manager in managers)
    pinned = [c for c in pod.containers if any(manager.is_asked(c) for manager in managers)]
    lasting = [c for c in pinned if c.kind is not ContainerKind.INIT]
    if not lasting and (is_running or not held.holders):
        # Resources of plain init containers may be missing, because these containers may have ended already.
        return is_running
    return all(manager.has_container(held, c) for manager in managers for c in lasting or pinned)


def kept_hints(
    topology: TopologyManager, managers: Sequence[Resource], held: PodPromises, pod: PodDemand
) -> tuple[tuple[str, Hint], ...]:
    """Return the NUMA hints that are stored for a pod. If a container has none, return hints derived from the NUMA nodes of the containers'
    allocations.
    """
    names = sorted(container.name for container in pod.containers)
    if {name for name, _ in held.hints} == set(names):
        return held.hints
    every = NumaSet(topology.rules.default_mask)
    hints = []
    for name in names:
        nodes = NumaSet()
        for container in names if topology.scope is Scope.POD else (name,):
            for manager in managers:
                nodes |= manager.numa_nodes_of(held, container)
        mask = None if topology.rules.single_node and nodes in {NumaSet(), every} else nodes or every
        hints.append((name, Hint(mask, preferred=True)))
    return tuple(hints)


def kept_deltas(managers: Sequence[Resource], pod: PodDemand) -> MetricDeltas:
    """Return the metric increments by which kubelet counts the renewed admission of a pod that already holds its resources."""
    if pod.is_skipped:
        return ()
    return tuple(delta for container in pod.containers for m in managers for delta in m.found_deltas(container))
