"""Does a pod already hold everything it asks for? Then admitting it again changes nothing, refuses nothing and doubles nothing.

That is the case after a restart, and on a node taken over from kubelet (Erratum.POD_ALLOCATED_AGAIN and its neighbours).
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
    """Judge by what long-running containers hold; plain init containers may have run and released theirs.

    Args:
        managers: as built.
        held: what the pod has.
        pod: what it asks for.
        by_pod: it gets one set, which its containers share.
        is_running: it was admitted before.
    """
    if pod.is_skipped:
        # It gets nothing new, and keeps what it got before its gate was turned off (KEP-5526).
        return held.of(CpuHoldings) != CpuHoldings() or held.of(MemoryHoldings) != MemoryHoldings()
    if by_pod:
        return bool(held.holders) and all(manager.has_pod(held, pod) for manager in managers)
    pinned = [c for c in pod.containers if any(manager.is_asked(c) for manager in managers)]
    lasting = [c for c in pinned if c.kind is not ContainerKind.INIT]
    if not lasting and (is_running or not held.holders):
        # What only plain init containers ask for may be missing once they have run.
        return is_running
    return all(manager.has_container(held, c) for manager in managers for c in lasting or pinned)


def kept_hints(
    topology: TopologyManager, managers: Sequence[Resource], held: PodPromises, pod: PodDemand
) -> tuple[tuple[str, Hint], ...]:
    """Return the stored hints, or hints for the places where the containers already are."""
    names = sorted(container.name for container in pod.containers)
    if {name for name, _ in held.hints} == set(names):
        return held.hints
    places = {name: _place(managers, held, name) for name in names}
    if topology.scope is Scope.POD:
        together = NumaSet()
        for nodes in places.values():
            together |= nodes
        places = dict.fromkeys(names, together)
    return tuple((name, _hint(topology, nodes)) for name, nodes in places.items())


def _place(managers: Sequence[Resource], held: PodPromises, name: str) -> NumaSet:
    nodes = NumaSet()
    for manager in managers:
        nodes |= manager.numa_nodes_of(held, name)
    return nodes


def _hint(topology: TopologyManager, nodes: NumaSet) -> Hint:
    every = NumaSet(topology.rules.default_mask)
    nodes = nodes or every
    return Hint(None if topology.rules.single_node and nodes == every else nodes, preferred=True)


def kept_deltas(managers: Sequence[Resource], pod: PodDemand) -> MetricDeltas:
    """Count what is already allocated, as kubelet counts it."""
    if pod.is_skipped:
        return ()
    return tuple(delta for container in pod.containers for m in managers for delta in m.found_deltas(container))
