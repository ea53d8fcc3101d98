"""The memory manager as one of several resource managers."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec import Struct

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MEMORY_REQUESTS, MetricDeltas, plus
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import MEMORY, ContainerKind, Pod
from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises, Promises
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.model.violations import Shortfall, Violation
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE
from nodeagent.core.numa.resource_manager import Allocation, ResourceHints
from nodeagent.core.resources.memory import hints, pods
from nodeagent.core.resources.memory.holdings import MemoryHoldings, memory_accounts
from nodeagent.core.resources.memory.invariants import memory_shortfalls, memory_violations
from nodeagent.core.resources.memory.manager import (
    MemoryManager,
    allocate_container,
    release_container,
    release_pod_blocks,
    release_started,
)
from nodeagent.core.resources.memory.restore import validated_memory

BytesByNode = Mapping[int, int]
"""Regular memory of blocks that lie on one NUMA node alone, by that node."""


class MemoryResource(Struct, frozen=True):
    """See `ResourceManager`."""

    manager: MemoryManager
    name: ClassVar[str] = "memory"

    def container_hints(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> ResourceHints:
        return _listed(hints.container_hints(self.manager, promises, pod, container))

    def pod_hints(self, promises: Promises, pod: PodDemand) -> ResourceHints:
        return _listed(hints.pod_hints(self.manager, promises, pod))

    def allocate_container(self, promises: Promises, pod: PodDemand, container: ContainerDemand) -> Allocation:
        return allocate_container(self.manager, promises, pod, container)

    def allocate_pod(self, promises: Promises, pod: PodDemand) -> Allocation:
        return pods.allocate_pod(self.manager, promises, pod)

    def percent_given(self, promises: Promises, node: int) -> int | None:
        """Regular memory in containers' blocks on this node alone, as a share of what is allocatable there."""
        if not self.manager.static:
            return None
        assigned = promises.pods.fold(_ALONE).get(node, 0)
        accounting = next((n for n in memory_accounts(promises) if n.id == node), None)
        table = None if accounting is None else accounting.table(MEMORY)
        return assigned * 100 // table.allocatable if table is not None and table.allocatable else 0

    def is_asked(self, container: ContainerDemand) -> bool:
        return self.manager.static and bool(container.memory)

    def has_container(self, held: PodPromises, container: ContainerDemand) -> bool:
        # A plain init container returns its memory when the one after it starts.
        is_back = container.kind is ContainerKind.INIT
        return is_back or held.of(MemoryHoldings).blocks(container.name) is not None or not self.is_asked(container)

    def has_pod(self, held: PodPromises, pod: PodDemand) -> bool:
        return (
            held.of(MemoryHoldings).pod_memory is not None
            or bool(held.of(MemoryHoldings).memory)
            or not (self.manager.static and pod.memory)
        )

    def place(self, held: PodPromises, name: str) -> NumaSet:
        nodes = NumaSet()
        for block in held.of(MemoryHoldings).blocks(name) or ():
            nodes |= block.nodes
        return nodes

    def found_deltas(self, container: ContainerDemand) -> MetricDeltas:
        return (plus(MEMORY_REQUESTS),) if self.is_asked(container) else ()

    def start_container(self, promises: Promises, pod: Pod, name: str) -> Promises:
        return release_started(self.manager, promises, pod, name)

    def release_container(self, promises: Promises, uid: str, name: str) -> tuple[Promises, MetricDeltas]:
        return release_container(self.manager, promises, uid, name), ()

    def release_pod(self, promises: Promises, uid: str) -> tuple[Promises, MetricDeltas]:
        return release_pod_blocks(self.manager, promises, uid), ()

    def validated(self, promises: Promises) -> Promises | StartRefused:
        return validated_memory(self.manager, promises)

    def started_deltas(self, promises: Promises) -> MetricDeltas:  # noqa: ARG002 -- it has counters only
        return ()

    def gauges(self, promises: Promises) -> tuple[tuple[Series, int], ...]:  # noqa: ARG002 -- it has counters only
        return ()

    def violations(self, promises: Promises, active: tuple[Pod, ...]) -> Iterator[Violation]:  # noqa: ARG002 -- its books know no pods
        return memory_violations(self.manager, promises)

    def shortfalls(self, promises: Promises) -> Iterator[Shortfall]:
        return memory_shortfalls(self.manager, promises)


def _listed(found: hints.MemoryHints) -> ResourceHints:
    # No answer at all is one list that doesn't care; an empty list can't be satisfied.
    return tuple((resource, each or UNSATISFIABLE) for resource, each in found) or (("memory", DONT_CARE),)


def _alone(_uid: str, pod: PodPromises) -> BytesByNode:
    found: dict[int, int] = {}
    for _, blocks in pod.of(MemoryHoldings).memory:
        for block in blocks:
            if block.resource == MEMORY and len(block.nodes) == 1:
                (node,) = block.nodes
                found[node] = found.get(node, 0) + block.size_bytes
    return found


def _summed(a: BytesByNode, b: BytesByNode) -> BytesByNode:
    return {node: a.get(node, 0) + b.get(node, 0) for node in a.keys() | b.keys()} if a and b else a or b


_ALONE: Fold[PodPromises, BytesByNode] = Fold({}, _alone, _summed)
