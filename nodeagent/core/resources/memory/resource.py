"""Implementation of the `Resource` contract by the memory manager."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import replace

from nodeagent.core.metrics.agent_metrics import MEMORY_ALLOCATED, MEMORY_FREE
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MEMORY_REQUESTS, MetricDeltas, plus
from nodeagent.core.model.cgroup import ObservedCgroup, ObservedCgroups
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.refusals import NotResized, StartRefused
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.violations import MachineChange, Shortfall, Violation
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE
from nodeagent.core.numa.topology_manager import TopologyManager
from nodeagent.core.resources.memory import hints, pods
from nodeagent.core.resources.memory.groups import NodeGroups
from nodeagent.core.resources.memory.holdings import MemoryBooks, MemoryHoldings, memory_accounts
from nodeagent.core.resources.memory.invariants import memory_shortfalls, memory_violations
from nodeagent.core.resources.memory.keep import (
    find_memory_in_cgroups,
    keep_memory,
    list_memory_changes,
    memory_differences,
)
from nodeagent.core.resources.memory.manager import (
    MemoryManager,
    allocate_container,
    release_container,
    release_pod_blocks,
    release_started,
)
from nodeagent.core.resources.memory.resize import resize_memory
from nodeagent.core.resources.memory.restore import validate_memory
from nodeagent.core.resources.resource import Allocation, HoldingChange, Resource, ResourceHints, Share

if TYPE_CHECKING:
    from nodeagent.core.resources.memory.explainer import MemoryExplainer

BytesByNodes = Mapping[tuple[str, NumaMask], int]
"""Allocated bytes by resource and group of NUMA nodes."""


class MemoryResource(Resource, frozen=True):
    """The memory manager as a resource (core/resources/resource.py)."""

    manager: MemoryManager
    name: ClassVar[str] = "memory"
    holdings: ClassVar[type[MemoryHoldings]] = MemoryHoldings

    def explainer(self) -> "MemoryExplainer":
        from nodeagent.core.resources.memory.explainer import MemoryExplainer  # noqa: PLC0415 - few decisions are explained

        return MemoryExplainer(self)

    def limited_to(self, pod: PodDemand) -> "MemoryResource":
        if pod.numa_node is None:
            return self
        return MemoryResource(replace(self.manager, groups=NodeGroups((NumaMask(1 << pod.numa_node),))))

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        return _as_resource_hints(hints.container_hints(self.manager, promises, pod, container))

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        return _as_resource_hints(hints.pod_hints(self.manager, promises, pod))

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        return allocate_container(self.manager, promises, pod, container)

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        return pods.allocate_pod(self.manager, promises, pod)

    def list_shares(self, promises: Promises, name: str) -> tuple[Share, ...]:
        """Return the allocated bytes of each group of NUMA nodes, and the allocatable bytes of each node."""
        if not self.manager.static:
            return ()
        tables = [(NumaMask(1 << node.id), node.table(name)) for node in memory_accounts(promises)]
        whole = tuple(Share(mask, 0, table.allocatable) for mask, table in tables if table is not None)
        blocks = promises.pods.fold(_BLOCK_BYTES).items()
        return whole and (*whole, *(Share(mask, size, 0) for (resource, mask), size in blocks if resource == name))

    def end_reuse(self, promises: Promises) -> Promises:
        books = promises.of(MemoryBooks)
        return promises if books.reuse is None else promises.having(MemoryBooks(books.nodes))

    def is_asked(self, container: ContainerDemand) -> bool:
        return self.manager.static and bool(container.memory)

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        # a plain init container releases its memory when a later container starts
        is_init = container.kind is ContainerKind.INIT
        return is_init or held.of(MemoryHoldings).blocks(container.name) is not None or not self.is_asked(container)

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        own = held.of(MemoryHoldings)
        return own.pod_memory is not None or bool(own.memory) or not (self.manager.static and pod.memory)

    def numa_nodes_of(self, held: PodPromises, name: str) -> NumaSet:
        return held.of(MemoryHoldings).nodes(name)

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:
        return (plus(MEMORY_REQUESTS),) if self.is_asked(container) else ()

    def start_container(self, promises: Promises, pod: Pod, name: str) -> Promises:
        return release_started(self.manager, promises, pod, name)

    def is_lowered(self, before: ContainerDemand, now: ContainerDemand) -> bool:
        return sum(size for _, size in now.memory or ()) < sum(size for _, size in before.memory or ())

    def resize(
        self,
        topology: TopologyManager,
        promises: Promises,
        pod: PodDemand,
        before: ContainerDemand,
        now: ContainerDemand,
    ) -> Promises | NotResized:
        return resize_memory(self.manager, topology, promises, pod, before, now)

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        return release_container(self.manager, promises, uid, name), ()

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
        return release_pod_blocks(self.manager, promises, uid), ()

    def find_in_cgroups(
        self,
        entry: PodEntry,
        pod: PodDemand,
        groups: Mapping[str, ObservedCgroup | None],
        observed: ObservedCgroups,
        *,
        by_pod: bool,
    ) -> MemoryHoldings:
        return find_memory_in_cgroups(entry, pod, groups, by_pod=by_pod)

    def keep(self, promises: Promises, pod: Pod, demand: PodDemand, before: PodPromises) -> Promises:
        return keep_memory(self.manager, promises, pod, demand, before.of(MemoryHoldings))

    def lacks(self, held: PodPromises, pod: PodDemand, *, by_pod: bool) -> bool:
        if not self.manager.static:
            return False
        own = held.of(MemoryHoldings)
        if by_pod:
            return bool(pod.memory) and own.pod_memory is None
        lasting = (c for c in pod.containers if c.kind is not ContainerKind.INIT)
        return any(bool(c.memory) and own.blocks(c.name) is None for c in lasting)

    def differences(
        self,
        promises: Promises,
        pod: Pod,
        demand: PodDemand,
        before: PodPromises,
        name: str,
        *,
        by_pod: bool,
    ) -> Iterator[HoldingChange]:
        return memory_differences(self.manager, promises, pod, demand, before.of(MemoryHoldings), name)

    def machine_changes(self, before: Promises, after: Promises) -> Iterator[MachineChange]:
        return list_memory_changes(before, after)

    def validate(self, promises: Promises) -> Promises | StartRefused:
        return validate_memory(self.manager, promises)

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:
        return tuple(
            (Series(name, (("numa_node", str(node.id)), ("resource", resource))), amount)
            for node in memory_accounts(promises)
            for resource, table in node.tables
            for name, amount in ((MEMORY_ALLOCATED, table.reserved), (MEMORY_FREE, max(0, table.free)))
        )

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:
        return memory_violations(self.manager, promises)

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        return memory_shortfalls(self.manager, promises)


def _as_resource_hints(found: hints.MemoryHints) -> ResourceHints:
    # Without hints, the result is one list that accepts any node. An empty list of hints means that the request can't be met.
    return tuple((resource, each or UNSATISFIABLE) for resource, each in found) or (("memory", DONT_CARE),)


def _sum_blocks(_uid: str, pod: PodPromises) -> BytesByNodes:
    found: dict[tuple[str, NumaMask], int] = {}
    for _, blocks in pod.of(MemoryHoldings).memory:
        for block in blocks:
            place = (block.resource, block.nodes.bits)
            found[place] = found.get(place, 0) + block.size_bytes
    return found


def _add_bytes(a: BytesByNodes, b: BytesByNodes) -> BytesByNodes:
    return {place: a.get(place, 0) + b.get(place, 0) for place in a.keys() | b.keys()} if a and b else a or b


_BLOCK_BYTES: Fold[PodPromises, BytesByNodes] = Fold({}, _sum_blocks, _add_bytes)
