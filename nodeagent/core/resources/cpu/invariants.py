"""Checks of the CPU manager's promises: violated invariants, and allocated CPUs that are offline."""

from collections.abc import Iterator

from nodeagent.core.model.demand import qualifies_alone
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, ContainerKind, Pod
from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.violations import CpusOffline, Invariant, Violation
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set, exclusive_sets
from nodeagent.core.resources.cpu.manager import CpuManager


def cpu_violations(manager: CpuManager, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
    """Yield the violated invariants about who owns which CPUs."""
    if not manager.static:
        return
    yield from _find_node_violations(manager, promises)
    pods = {pod.uid: pod for pod in active}
    for uid, held in promises.pods:
        pod = pods.get(uid)
        if pod is not None:
            yield from pod_violations(pod, held.of(CpuHoldings))


def _find_node_violations(manager: CpuManager, promises: Promises) -> Iterator[Violation]:
    default = default_set(promises)
    allocated, shared = promises.pods.fold(_OWNED)
    earlier = CpuSet()
    for uid, pod in promises.pods if shared else ():
        pod_cpus = pod.of(CpuHoldings).every_cpu
        if not pod_cpus.isdisjoint(earlier):
            yield Violation(invariant=Invariant.PODS_SHARE_NO_CPUS, pod=uid, cpus=pod_cpus & earlier)
        earlier |= pod_cpus
    # CPUs that went offline stay allocated. The shared pool must have exactly the other online CPUs.
    expected = CpuSet(manager.universe) - allocated
    if default != expected:
        yield Violation(invariant=Invariant.SHARED_POOL_HAS_THE_REST, cpus=default, expected_cpus=expected)
    if not manager.reserved.isdisjoint(allocated):
        yield Violation(invariant=Invariant.RESERVED_CPUS_ARE_FREE, cpus=manager.reserved & allocated)


_OWNED: Fold[PodPromises, tuple[CpuSet, CpuSet]] = Fold(
    (CpuSet(), CpuSet()),
    lambda _uid, pod: (pod.of(CpuHoldings).every_cpu, CpuSet()),
    lambda a, b: (a[0] | b[0], a[1] | b[1] | (a[0] & b[0])),
)
"""CPUs that at least one pod holds, and CPUs that several pods hold."""


def pod_violations(pod: Pod, held: CpuHoldings) -> Iterator[Violation]:
    """Yield a violation for each two containers of the pod whose CPUs overlap, although they may run at the same time and don't both use
    the pod's shared pool. Also yield CPUs outside of the pod's CPU set.
    """
    if held.pod_cpus is None and len(held.cpus) < 2:
        return
    sets = dict(held.cpus)
    earlier: list[tuple[Container, CpuSet]] = []
    for container in pod.containers:
        cpus = sets.get(container.name)
        if cpus is None:
            continue
        if held.pod_cpus is not None and not cpus <= held.pod_cpus:
            yield Violation(
                invariant=Invariant.CPUS_ARE_OF_THE_POD,
                pod=pod.uid,
                container=container.name,
                cpus=cpus,
                expected_cpus=held.pod_cpus,
            )
        for other, other_cpus in earlier:
            if not cpus.isdisjoint(other_cpus) and not _may_overlap(held, other, container):
                yield Violation(
                    invariant=Invariant.CONTAINERS_SHARE_NO_CPUS,
                    pod=pod.uid,
                    container=container.name,
                    beside=other.name,
                    cpus=cpus & other_cpus,
                )
        if container.kind is not ContainerKind.INIT:
            # Sidecars keep running, whereas a plain init container has ended before the next container starts.
            earlier.append((container, cpus))


def _may_overlap(held: CpuHoldings, earlier: Container, later: Container) -> bool:
    """Return whether the CPUs of two containers may overlap, because both use the pod's shared pool, or because the earlier one does and
    the later one is an init container. The states of kubelet contain both cases.
    """
    if held.pod_cpus is None or qualifies_alone(earlier):
        return False
    return not qualifies_alone(later) or later.kind is ContainerKind.INIT


def cpu_shortfalls(manager: CpuManager, promises: Promises) -> Iterator[CpusOffline]:
    """Yield each allocation that contains offline CPUs."""
    online = CpuSet(manager.layout.online)
    for uid, name, cpus in exclusive_sets(promises):
        if not cpus <= online:
            yield CpusOffline(uid, name, cpus - online, cpus)
