"""The invariants of promises: checked before each save (a violation there is a bug) and after each load.

They hold without errata; under `kubelet-1.36` violations are reported, not asserted.
"""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.cpu.manager import CpuManager
from nodeagent.core.memory.manager import MemoryManager
from nodeagent.core.memory.restore import books_differ, charged_blocks
from nodeagent.core.model.demand import qualifies_alone
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod
from nodeagent.core.model.promises import PodPromises, Promises


def cpu_violations(manager: CpuManager, promises: Promises, active: tuple[Pod, ...]) -> tuple[str, ...]:
    """Name what is wrong with who holds what."""
    pods = {pod.uid: pod for pod in active}
    found = list(_orphans(promises, pods))
    if not manager.static:
        return tuple(found)
    found += _node_violations(manager, promises)
    for uid, held in promises.pods:
        pod = pods.get(uid)
        if pod is not None:
            found += pod_violations(pod, held)
    return tuple(found)


def _orphans(promises: Promises, pods: dict[str, Pod]) -> Iterator[str]:
    for uid, held in promises.pods:
        pod = pods.get(uid)
        if pod is None:
            yield f"pod {uid} holds something and is not active"
            continue
        names = {container.name for container in pod.containers}
        holders = {name for name, _ in (*held.cpus, *held.memory, *held.hints)}
        if holders <= names:
            continue
        for name in sorted(holders - names):
            yield f"pod {uid} holds something for container {name}, which it doesn't have"


def _node_violations(manager: CpuManager, promises: Promises) -> Iterator[str]:
    default = promises.default
    given = CpuSet()
    for uid, held in promises.pods:
        mine = held.pod_cpus or CpuSet()
        for _, cpus in held.cpus:
            mine |= cpus
        if not mine.isdisjoint(given):
            yield f"pod {uid} holds CPUs {mine & given} that another pod holds too"
        given |= mine
    # Promised CPUs that went offline stay promised; the shared pool has exactly the rest of what is there.
    expected = CpuSet(manager.universe) - given
    if default != expected:
        yield f"the shared pool has CPUs {default}, what no pod holds is {expected}"
    if not manager.reserved.isdisjoint(given):
        yield f"reserved CPUs {manager.reserved & given} are held by a pod"


def pod_violations(pod: Pod, held: PodPromises) -> Iterator[str]:
    """CPUs within a pod: only what never runs at the same time, or shares the pod's pool, may overlap."""
    if held.pod_cpus is None and len(held.cpus) < 2:
        return
    sets = dict(held.cpus)
    beside: list[tuple[Container, CpuSet]] = []
    for container in pod.containers:
        cpus = sets.get(container.name)
        if cpus is None:
            continue
        if held.pod_cpus is not None and not cpus <= held.pod_cpus:
            yield f"pod {pod.uid}, container {container.name}: CPUs {cpus} are not all of the pod's {held.pod_cpus}"
        for other, taken in beside:
            if not cpus.isdisjoint(taken) and not _may_overlap(held, other, container):
                yield f"pod {pod.uid}, container {container.name}: CPUs {cpus & taken} are held by {other.name} too"
        if container.kind is not ContainerKind.INIT:
            # Sidecars go on; a plain init container has ended before anything after it starts.
            beside.append((container, cpus))


def _may_overlap(held: PodPromises, earlier: Container, later: Container) -> bool:
    """Whether both are in the pod's pool, or the later one is there for a while only, as in states that kubelet has left."""
    if held.pod_cpus is None or qualifies_alone(earlier):
        return False
    return not qualifies_alone(later) or later.kind is ContainerKind.INIT


def memory_violations(manager: MemoryManager, promises: Promises) -> tuple[str, ...]:
    """Name what is wrong with the books."""
    if not manager.static:
        return ()
    found = [
        f"NUMA node {node.id}: {table.reserved} + {table.free} bytes of {resource} reserved and free, {table.allocatable} allocatable"
        for node in promises.memory
        for resource, table in node.tables
        if table.reserved + table.free != table.allocatable
    ]
    difference = books_differ(manager, promises)
    return (*found, *(() if difference is None else (difference,)))


class Shortfall(Struct, frozen=True):
    """A promise that the machine can't keep at present."""

    text: str
    uid: str | None = None
    """The pod's. None: it is about a NUMA node's books, which all pods share."""
    container: str | None = None


def shortfalls(cpu: CpuManager, memory: MemoryManager, promises: Promises) -> tuple[Shortfall, ...]:
    """Name every promise that the machine can't keep at present: CPUs that are offline, memory that is gone."""
    online = CpuSet(cpu.layout.online)
    found = [
        Shortfall(f"pod {uid}, container {name}: CPUs {cpus - online} of {cpus} are offline", uid, name)
        for uid, name, cpus in promises.containers
        if not cpus <= online
    ]
    if not memory.static:
        return tuple(found)
    present = NumaSet.from_ids(node.id for node in promises.memory)
    for uid, name, block in charged_blocks(memory, promises):
        who = f"pod {uid}, container {name}" if name else f"pod {uid}"
        if not block.nodes <= present:
            text = f"{who}: {block.resource} is promised on NUMA nodes {block.nodes - present}, which are gone"
            found.append(Shortfall(text, uid, name or None))
    found += [
        Shortfall(f"NUMA node {node.id}: {-table.free} bytes more of {resource} are promised than there are")
        for node in promises.memory
        for resource, table in node.tables
        if table.free < 0
    ]
    return tuple(found)
