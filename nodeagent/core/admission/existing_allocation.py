"""Does a pod hold all that it asks for already? Then admitting it again moves nothing, refuses nothing and doubles nothing.

That is the case after a restart, and on a node taken over from kubelet (Erratum.POD_ALLOCATED_AGAIN and its neighbours).
"""

from nodeagent.core.cpu.manager import CpuManager
from nodeagent.core.memory.manager import MemoryManager
from nodeagent.core.metrics.manager_metrics import CPU_REQUESTS, MEMORY_REQUESTS, MetricDeltas, aligned, plus
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import ContainerKind
from nodeagent.core.model.promises import Hint, PodPromises
from nodeagent.core.numa.topology_manager import Scope, TopologyManager


def holds_all(
    cpu: CpuManager, memory: MemoryManager, held: PodPromises, pod: PodDemand, *, by_pod: bool, is_running: bool
) -> bool:
    """Judge by what long-running containers hold; plain init containers may have run and given theirs back.

    Args:
        cpu: as built.
        memory: as built.
        held: what the pod has.
        pod: what it asks for.
        by_pod: it gets a set of its own, which its containers share out.
        is_running: it was admitted before.
    """
    if pod.is_skipped:
        # It gets nothing new, and keeps what it was given before its gate was turned off (KEP-5526).
        return held.has_resources
    if by_pod:
        has_cpus = held.pod_cpus is not None or bool(held.cpus) or not (cpu.static and pod.cpus)
        has_memory = held.pod_memory is not None or bool(held.memory) or not (memory.static and pod.memory)
        return has_cpus and has_memory and bool(held.cpus or held.memory)
    pinned = [c for c in pod.containers if (cpu.static and c.cpus) or (memory.static and c.memory)]
    lasting = [c for c in pinned if c.kind is not ContainerKind.INIT]
    if lasting:
        return all(_has_cpus(cpu, held, c) and _has_memory(memory, held, c) for c in lasting)
    # What only plain init containers ask for is not missed once they have run.
    return is_running or (bool(held.cpus or held.memory) and all(_has_cpus(cpu, held, c) for c in pinned))


def _has_cpus(cpu: CpuManager, held: PodPromises, container: ContainerDemand) -> bool:
    return held.own_set(container.name) is not None or not (cpu.static and container.cpus)


def _has_memory(memory: MemoryManager, held: PodPromises, container: ContainerDemand) -> bool:
    return held.blocks(container.name) is not None or not (memory.static and container.memory)


def kept_hints(
    topology: TopologyManager, cpu: CpuManager, held: PodPromises, pod: PodDemand
) -> tuple[tuple[str, Hint], ...]:
    """Give the stored hints, or those that lead to where the containers are."""
    names = sorted(container.name for container in pod.containers)
    if {name for name, _ in held.hints} == set(names):
        return held.hints
    masks = {name: _place(cpu, held, name) for name in names}
    if topology.scope is Scope.POD:
        together = 0
        for mask in masks.values():
            together |= mask
        masks = dict.fromkeys(names, together)
    return tuple((name, _hint(topology, mask)) for name, mask in masks.items())


def _place(cpu: CpuManager, held: PodPromises, name: str) -> int:
    own = held.own_set(name)
    mask = 0 if own is None else sum(1 << node.id for node in cpu.layout.nodes if node.cpus & own.bits)
    for block in held.blocks(name) or ():
        mask |= block.nodes.bits
    return mask


def _hint(topology: TopologyManager, mask: int) -> Hint:
    default = topology.rules.default_mask
    mask = mask or default
    return Hint(None if topology.rules.single_node and mask == default else NumaSet(mask), preferred=True)


def kept_moves(cpu: CpuManager, memory: MemoryManager, pod: PodDemand) -> MetricDeltas:
    """Count what is found in place, as kubelet counts it."""
    moves: MetricDeltas = ()
    if pod.is_skipped:
        return moves
    for container in pod.containers:
        if cpu.static and container.cpus:
            full = (aligned("container", "physical_cpu"),) if cpu.options.full_pcpus_only else ()
            moves += (plus(CPU_REQUESTS), *full)
        if memory.static and container.memory:
            moves += (plus(MEMORY_REQUESTS),)
    return moves
