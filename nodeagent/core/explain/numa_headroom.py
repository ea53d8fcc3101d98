"""Free resources of each NUMA node, and the holders of its other CPUs. Shows why a pod is refused, and how fragmented the node is."""

from collections.abc import Iterable
from functools import reduce
from operator import or_

from msgspec import Struct

from nodeagent.core.admission.managers import Managers
from nodeagent.core.model.idset import CpuMask, CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.cpu.holdings import CpuHoldings, free_cpus
from nodeagent.core.resources.cpu.manager import NOBODY
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.holdings import memory_accounts


class HeldOnNode(Struct, frozen=True):
    """A container, or a pod as a whole, that holds exclusive CPUs on a NUMA node."""

    pod: str
    container: str | None
    cpus: CpuSet


class MemoryHeadroom(Struct, frozen=True):
    resource: str
    allocatable_bytes: int
    free_bytes: int


class NodeHeadroom(Struct, frozen=True):
    """Free resources of one NUMA node."""

    id: int
    cpus: CpuSet
    free: CpuSet
    """CPUs that can still be allocated exclusively."""
    whole_cores: int
    """Number of cores on which all CPUs are free."""
    split: CpuSet
    """Free CPUs on cores that are partly in use."""
    whole_caches: int
    """Number of uncore caches with only free CPUs. 0 if the NUMA node has no known caches."""
    caches: int
    reserved: CpuSet
    holders: tuple[HeldOnNode, ...]
    memory: tuple[MemoryHeadroom, ...]
    """Empty under memory manager policy None."""
    group: NumaSet | None
    """Group of nodes in which the node's memory is used. None means that the node isn't used in a group of several nodes."""


def headroom(
    managers: Managers,
    promises: Promises,
    pods: Iterable[Pod],
    lent: CpuSet = CpuSet(),
    core_class: str | None = None,
) -> tuple[NodeHeadroom, ...]:
    """Return the free resources of every NUMA node, including nodes without CPUs.

    Args:
        managers: the node's managers.
        promises: the current promises.
        pods: the active pods, for their names.
        lent: CPUs that can be allocated although a pod holds them.
        core_class: the class of cores to count. None means all cores.
    """
    names = {pod.uid: pod.full_name for pod in pods}
    held = [
        HeldOnNode(names.get(uid, uid), name, cpus)
        for uid, of_pod in promises.pods
        for own in (of_pod.of(CpuHoldings),)
        for name, cpus in (own.cpus if own.pod_cpus is None else ((None, own.pod_cpus),))
    ]
    held.sort(key=lambda holder: (holder.pod, holder.container or ""))
    cpu = managers.providers.of(CpuResource).manager
    free = free_cpus(promises, cpu.grantable) | lent
    topology = managers.topology
    counted = topology.online if core_class is None else topology.core_classes[core_class]
    return tuple(_examine_node(managers, promises, node.id, held, free, counted) for node in topology.numa)


def largest_usable(managers: Managers, promises: Promises, nodes: Iterable[NodeHeadroom]) -> int:
    """Return the largest number of exclusive CPUs that a container could get on a single NUMA node."""
    cpu = managers.providers.of(CpuResource).manager
    anyone = cpu.asking(promises, NOBODY, None, 0, 0)
    return max((cpu.usable(anyone, node.free.bits).bit_count() for node in nodes), default=0)


def _examine_node(
    managers: Managers, promises: Promises, node: int, held: list[HeldOnNode], all_free: CpuSet, counted: CpuSet
) -> NodeHeadroom:
    topology = managers.topology
    cpus = topology.nodes.get(node, CpuSet()) & counted
    free = all_free & cpus
    bits = free.bits
    cores = [core.bits for core in topology.cores_of_nodes.get(node, ()) if core.bits & bits == core.bits]
    whole = CpuSet(CpuMask(reduce(or_, cores, 0)))
    caches = topology.uncores_of_nodes.get(node, ())
    books = next((n for n in memory_accounts(promises) if n.id == node), None)
    return NodeHeadroom(
        id=node,
        cpus=cpus,
        free=free,
        whole_cores=len(cores),
        split=free - whole,
        whole_caches=sum(1 for members in caches if members <= free),
        caches=len(caches),
        reserved=managers.reserved & cpus,
        holders=tuple(HeldOnNode(h.pod, h.container, h.cpus & cpus) for h in held if h.cpus.bits & cpus.bits),
        memory=()
        if books is None
        else tuple(MemoryHeadroom(resource, t.allocatable, max(0, t.free)) for resource, t in books.tables),
        group=None if books is None or len(books.cells) < 2 else books.cells,
    )
