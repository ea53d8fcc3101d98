"""Implementation of the `Resource` contract by the CPU manager."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from nodeagent.core.metrics.agent_metrics import FREE_CORES, FREE_CPUS
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
from nodeagent.core.model.cgroup import ObservedCgroup, ObservedCgroups
from nodeagent.core.model.config import CpuPlugin
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import CpuMask, CpuSet, NumaMask, NumaSet
from nodeagent.core.model.pod import CPU, ContainerKind, Pod
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.refusals import NotResized, Reason, Refusal, StartRefused
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.violations import MachineChange, Shortfall, Violation
from nodeagent.core.numa.hint_family import Hints
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE
from nodeagent.core.numa.topology_manager import TopologyManager
from nodeagent.core.resources.cpu import hints, pods
from nodeagent.core.resources.cpu.holdings import CpuBooks, CpuHoldings, exclusive_cpus, free_cpus
from nodeagent.core.resources.cpu.invariants import cpu_shortfalls, cpu_violations
from nodeagent.core.resources.cpu.keep import (
    cpu_differences,
    cpus_of,
    fill_cpus,
    find_cpus_in_cgroups,
    keep_cpus,
    list_cpu_changes,
)
from nodeagent.core.resources.cpu.manager import (
    CpuManager,
    allocate_container,
    divide_among_nodes,
    release_container,
    release_pod_set,
    reusable_cpus,
    start_deltas,
)
from nodeagent.core.resources.cpu.points import Point
from nodeagent.core.resources.cpu.resize import resize_cpus
from nodeagent.core.resources.cpu.restore import validate_cpus
from nodeagent.core.resources.resource import Allocation, HoldingChange, Resource, ResourceHints, Share

if TYPE_CHECKING:
    from nodeagent.core.resources.cpu.explainer import CpuExplainer


_REASONS_WITHOUT_CORES = frozenset(
    {Reason.CORE_CLASS, Reason.DEVICE, Reason.CPU_PLUGIN_FAILED, Reason.DEVICE_PLUGINS_SLOW, Reason.CLAIM}
)
"""Reasons for a refusal that have nothing to do with the pod's class of cores, so the message doesn't mention the class."""
_REASONS_WITHOUT_CPUS = frozenset(
    {Reason.CPU_PLUGIN_FAILED, Reason.CPU_PLUGIN_REFUSED, Reason.DEVICE_PLUGINS_SLOW, Reason.CORE_CLASS}
)
"""Reasons for a refusal that have nothing to do with the CPUs that plugins filter out, so the message doesn't mention the plugins."""


def with_cpu_plugins(manager: CpuManager, plugins: tuple[CpuPlugin, ...]) -> CpuManager:
    """Return a copy of the manager with these plugins. The code that calls plugins is imported only if there are plugins."""
    if not plugins:
        return replace(manager, chooser=None)
    from nodeagent.core.resources.cpu.plugins import PluginChooser  # noqa: PLC0415 - as said

    return replace(manager, chooser=PluginChooser(plugins))


class CpuResource(Resource, frozen=True):
    """The CPU manager as a resource (core/resources/resource.py)."""

    manager: CpuManager
    name: ClassVar[str] = "cpu"
    holdings: ClassVar[type[CpuHoldings]] = CpuHoldings

    def explainer(self) -> "CpuExplainer":
        from nodeagent.core.resources.cpu.explainer import CpuExplainer  # noqa: PLC0415 - few decisions are explained

        return CpuExplainer(self)

    def limited_to(self, pod: PodDemand) -> "CpuResource":
        manager = self.manager
        if pod.core_class in {one.name for one in manager.classes}:
            manager = manager.of_class(pod.core_class)
        if pod.has_whole_cores:
            manager = manager.of_whole_cores()
        if pod.numa_node is not None:
            cpus = manager.layout.cpus_of_nodes(NumaMask(1 << pod.numa_node))
            manager = replace(manager, grantable=CpuMask(manager.grantable & cpus))
        return self if manager is self.manager else CpuResource(manager)

    def without_preferred_nodes(self) -> "CpuResource":
        return CpuResource(replace(self.manager, uses_all_nodes=False))

    def add_limits(self, refusal: Refusal, pod: PodDemand) -> Refusal:
        """Add to a refusal's message the pod's requirements on cores, and the plugins that have filtered out CPUs."""
        message = refusal.message
        if pod.has_whole_cores and refusal.reason is Reason.SMT_ALIGNMENT:
            message += " (settings of cores need whole cores)"
        if pod.core_class is not None and refusal.reason not in _REASONS_WITHOUT_CORES:
            message += f" (only {pod.core_class} cores, which it requires)"
        filters = {Point.FILTER.value, Point.POST_FILTER.value}
        names = [one.name for one in self.manager.plugins if one.code is not None and filters & one.code.points]
        if names and refusal.reason not in _REASONS_WITHOUT_CPUS:
            message += f" (of the CPUs that {' and '.join(names)} leaves)"
        return replace(refusal, message=message)

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        return _as_resource_hints(hints.container_hints(self.manager, promises, pod, container))

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        return _as_resource_hints(hints.pod_hints(self.manager, promises, pod))

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        return allocate_container(self.manager, promises, pod, container)

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        return pods.allocate_pod(self.manager, promises, pod)

    def list_shares(self, promises: Promises, name: str) -> tuple[Share, ...]:
        """Return, for each NUMA node, how many CPUs are allocated exclusively, and how many CPUs aren't reserved."""
        manager = self.manager
        if not manager.static or name != CPU:
            return ()
        exclusive, allocatable = exclusive_cpus(promises).bits, ~manager.reserved.bits
        return tuple(
            Share(NumaMask(1 << node.id), (exclusive & node.cpus).bit_count(), (allocatable & node.cpus).bit_count())
            for node in manager.layout.nodes
        )

    def fits_on_each(
        self, promises: Promises, pod: PodDemand, container: ContainerDemand | None, nodes: NumaMask
    ) -> bool:
        manager = self.manager
        free = free_cpus(promises, manager.grantable).bits | reusable_cpus(promises, pod.uid)
        name, count = (None, pod.cpus) if container is None else (container.name, container.cpus)
        return divide_among_nodes(manager, manager.asking(promises, pod, name, free, count), nodes) is not None

    def count_by_node(self, held: PodPromises, name: str) -> tuple[tuple[int, int], ...]:
        own = held.of(CpuHoldings).own_set(name) or CpuSet()
        return tuple((node.id, count) for node in self.manager.nodes if (count := (node.cpus & own.bits).bit_count()))

    def end_reuse(self, promises: Promises) -> Promises:
        books = promises.of(CpuBooks)
        return promises if books.reuse is None else promises.having(CpuBooks(books.default))

    def is_asked(self, container: ContainerDemand) -> bool:
        return self.manager.static and container.cpus > 0

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        return held.of(CpuHoldings).own_set(container.name) is not None or not self.is_asked(container)

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        own = held.of(CpuHoldings)
        return own.pod_cpus is not None or bool(own.cpus) or not (self.manager.static and pod.cpus)

    def numa_nodes_of(self, held: PodPromises, name: str) -> NumaSet:
        return NumaSet.from_ids(node for node, _ in self.count_by_node(held, name))

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:
        if not self.is_asked(container):
            return ()
        full = (aligned("container", "physical_cpu"),) if self.manager.options.full_pcpus_only else ()
        return (plus(CPU_REQUESTS), *full)

    def is_lowered(self, before: ContainerDemand, now: ContainerDemand) -> bool:
        return now.cpus < before.cpus

    def resize(
        self,
        topology: TopologyManager,
        promises: Promises,
        pod: PodDemand,
        before: ContainerDemand,
        now: ContainerDemand,
    ) -> Promises | NotResized:
        return resize_cpus(self.manager, topology, promises, pod, before, now)

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        return release_container(self.manager, promises, uid, name)

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
        return release_pod_set(self.manager, promises, uid)

    def find_in_cgroups(
        self,
        entry: PodEntry,
        pod: PodDemand,
        groups: Mapping[str, ObservedCgroup | None],
        observed: ObservedCgroups,
        *,
        by_pod: bool,
    ) -> CpuHoldings:
        return find_cpus_in_cgroups(entry, pod, groups, observed, by_pod=by_pod)

    def is_contradicted(self, held: PodPromises, container: str, group: ObservedCgroup, *, is_mixed: bool) -> bool:
        """Return whether a container's cgroup contradicts its recorded CPUs.

        CPUs that only the record contains are no contradiction, because they may be offline. CPUs that only the cgroup contains are a
        contradiction. The cgroup of a mixed container also contains the shared pool, so for such a container, only a missing online CPU is
        a contradiction.
        """
        own, cpus = held.of(CpuHoldings).own_set(container), cpus_of(group)
        if own is None:
            return False
        return not own & self.manager.topology.online <= cpus if is_mixed else not cpus <= own

    def keep(self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises) -> Promises:
        return keep_cpus(self.manager, promises, pod, demand, before.of(CpuHoldings))

    def lacks(self, held: PodPromises, pod: PodDemand, *, by_pod: bool) -> bool:
        if not self.manager.static:
            return False
        own = held.of(CpuHoldings)
        if by_pod:
            return bool(pod.cpus) and own.pod_cpus is None
        # Plain init containers are left out, because they may have run and passed their CPUs on to later containers.
        lasting = (c for c in pod.containers if c.kind is not ContainerKind.INIT)
        return any(len(own.own_set(c.name) or ()) < c.cpus for c in lasting)

    def is_away(self, held: PodPromises) -> bool:
        return any(not cpus <= self.manager.topology.online for _, cpus in held.of(CpuHoldings).cpus)

    def fill(self, topology: TopologyManager, promises: Promises, pod: Pod, demand: PodDemand) -> Sequence[Promises]:
        return fill_cpus(self.manager, topology, promises, pod, demand)

    def differences(
        self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises, name: str, *, by_pod: bool
    ) -> Iterator[HoldingChange]:
        return cpu_differences(self.manager, promises, pod, demand, before.of(CpuHoldings), name, by_pod=by_pod)

    def machine_changes(self, before: Promises, after: Promises) -> Iterator[MachineChange]:
        return list_cpu_changes(before, after)

    def validate(self, promises: Promises) -> Promises | StartRefused:
        return validate_cpus(self.manager, promises)

    def started_deltas(self, promises: Promises) -> MetricDeltas:
        return start_deltas(self.manager, promises)

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:
        manager = self.manager
        if not manager.static:
            return ()
        exclusive, free, topology = exclusive_cpus(promises), free_cpus(promises, manager.grantable), manager.topology
        labels = {node.id: (("numa_node", str(node.id)),) for node in topology.numa}
        return (
            (Series(CPU_SHARED_POOL), 1000 * manager.free_pool(promises).bit_count()),
            (Series(CPU_EXCLUSIVE), len(exclusive)),
            *(
                (Series(CPU_PER_NUMA, (("numa_node", str(node.id)),)), (node.cpus & exclusive.bits).bit_count())
                for node in manager.layout.nodes
            ),
            *(
                (Series(FREE_CPUS, label), len(free & topology.nodes.get(node, CpuSet())))
                for node, label in labels.items()
            ),
            *(
                (Series(FREE_CORES, label), sum(core <= free for core in topology.cores_of_nodes.get(node, ())))
                for node, label in labels.items()
            ),
        )

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
        return cpu_violations(self.manager, promises, active)

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        return cpu_shortfalls(self.manager, promises)


def _as_resource_hints(found: Hints | None) -> ResourceHints:
    return (("cpu", DONT_CARE if found is None else found or UNSATISFIABLE),)
