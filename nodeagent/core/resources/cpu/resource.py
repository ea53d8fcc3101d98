"""The CPU manager as one of several resource managers."""

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Struct

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import (
    CPU_EXCLUSIVE,
    CPU_PER_NUMA,
    CPU_REQUESTS,
    CPU_SHARED_POOL,
    MetricDeltas,
    aligned,
    plus,
)
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import CpuSet, NumaMask, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.violations import Shortfall, Violation
from nodeagent.core.numa.hint_family import Hints
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE
from nodeagent.core.numa.resource_manager import Allocation, ResourceHints
from nodeagent.core.resources.cpu import hints, pods
from nodeagent.core.resources.cpu.holdings import CpuHoldings, exclusive_cpus
from nodeagent.core.resources.cpu.invariants import cpu_shortfalls, cpu_violations
from nodeagent.core.resources.cpu.manager import (
    CpuManager,
    allocate_container,
    release_container,
    release_pod_set,
    start_deltas,
)
from nodeagent.core.resources.cpu.restore import validated_cpus


class CpuResource(Struct, frozen=True):
    """See `ResourceManager`."""

    manager: CpuManager
    name: ClassVar[str] = "cpu"

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        return _listed(hints.container_hints(self.manager, promises, pod, container))

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        return _listed(hints.pod_hints(self.manager, promises, pod))

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        return allocate_container(self.manager, promises, pod, container)

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        return pods.allocate_pod(self.manager, promises, pod)

    def percent_given(self, promises: Promises, node: int) -> int | None:
        """CPUs in exclusive sets, without the reserved ones."""
        manager = self.manager
        if not manager.static:
            return None
        cpus = manager.layout.cpus_of_nodes(NumaMask(1 << node))
        whole = (cpus & ~manager.reserved.bits).bit_count()
        return (exclusive_cpus(promises).bits & cpus).bit_count() * 100 // whole if whole else 0

    def is_asked(self, container: ContainerDemand) -> bool:
        return self.manager.static and container.cpus > 0

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        return held.of(CpuHoldings).own_set(container.name) is not None or not self.is_asked(container)

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        return (
            held.of(CpuHoldings).pod_cpus is not None
            or bool(held.of(CpuHoldings).cpus)
            or not (self.manager.static and pod.cpus)
        )

    def place(self, held: PodPromises, name: str) -> NumaSet:
        own = held.of(CpuHoldings).own_set(name) or CpuSet()
        return NumaSet.from_ids(node.id for node in self.manager.nodes if node.cpus & own.bits)

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:
        if not self.is_asked(container):
            return ()
        full = (aligned("container", "physical_cpu"),) if self.manager.options.full_pcpus_only else ()
        return (plus(CPU_REQUESTS), *full)

    def start_container(self, promises: Promises, pod: Pod, name: str) -> Promises:  # noqa: ARG002 -- CPUs stay until the pod goes
        return promises

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        return release_container(self.manager, promises, uid, name)

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
        return release_pod_set(self.manager, promises, uid)

    def validated(self, promises: Promises) -> Promises | StartRefused:
        return validated_cpus(self.manager, promises)

    def started_deltas(self, promises: Promises) -> MetricDeltas:
        return start_deltas(self.manager, promises)

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:
        manager = self.manager
        if not manager.static:
            return ()
        exclusive = exclusive_cpus(promises)
        return (
            (Series(CPU_SHARED_POOL), 1000 * manager.free_pool(promises).bit_count()),
            (Series(CPU_EXCLUSIVE), len(exclusive)),
            *(
                (Series(CPU_PER_NUMA, (("numa_node", str(node.id)),)), (node.cpus & exclusive.bits).bit_count())
                for node in manager.layout.nodes
            ),
        )

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
        return cpu_violations(self.manager, promises, active)

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        return cpu_shortfalls(self.manager, promises)


def _listed(found: Hints | None) -> ResourceHints:
    return (("cpu", DONT_CARE if found is None else found or UNSATISFIABLE),)
