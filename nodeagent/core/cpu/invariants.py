"""What must always hold of promises about CPUs, and which of them the machine can't keep at present."""

from collections.abc import Iterator

from nodeagent.core.cpu.manager import CpuManager
from nodeagent.core.model.demand import qualifies_alone
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.numa.resource_manager import Shortfall


def cpu_violations(manager: CpuManager, promises: Promises, active: tuple[Pod, ...]) -> Iterator[str]:
    """Name what is wrong with who holds what."""
    if not manager.static:
        return
    yield from _node_violations(manager, promises)
    pods = {pod.uid: pod for pod in active}
    for uid, held in promises.pods:
        pod = pods.get(uid)
        if pod is not None:
            yield from pod_violations(pod, held)


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


def cpu_shortfalls(manager: CpuManager, promises: Promises) -> Iterator[Shortfall]:
    """Name the sets of which CPUs are offline."""
    online = CpuSet(manager.layout.online)
    for uid, name, cpus in promises.containers:
        if not cpus <= online:
            yield Shortfall(f"pod {uid}, container {name}: CPUs {cpus - online} of {cpus} are offline", uid, name)
