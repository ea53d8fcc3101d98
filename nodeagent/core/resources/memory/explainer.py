"""Explanations of memory allocations: the allocated memory, the free memory of each NUMA node, and other amounts that a refused pod could
request.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import HUGEPAGES_PREFIX, MEMORY, Pod
from nodeagent.core.model.pod_amounts import find_smallest_step, get_least_amount
from nodeagent.core.model.promises import Hint, PodPromises, Promises
from nodeagent.core.model.refusals import Refusal
from nodeagent.core.resources.explainer import Explainer, ResourceEvent, SmallerAmounts, SoughtAmount
from nodeagent.core.resources.memory.groups import fewest_nodes
from nodeagent.core.resources.memory.holdings import Blocks, MemoryHoldings, memory_accounts
from nodeagent.core.resources.memory.pods import check_pod
from nodeagent.core.resources.memory.resource import MemoryResource
from nodeagent.core.resources.resource import Allocated


class MemoryStep(Struct, frozen=True):
    """Allocation of memory to a container or to a pod as a whole, as a step of an explanation."""

    container: str | None
    hint: Hint
    blocks: Blocks
    """Allocated memory. The tuple is empty after a refusal."""
    taken: tuple[tuple[int, str, int], ...]
    """Memory that was free before, as (NUMA node, resource, bytes). The rest of the allocated memory is reused from init containers."""
    refused: bool
    is_spread: bool = False
    """Whether the memory is spread over the NUMA nodes of the container's CPUs, in proportion to the number of CPUs (`spreadHugePages`)."""

    @property
    def nodes(self) -> NumaSet:
        nodes = NumaSet()
        for block in self.blocks:
            nodes |= block.nodes
        return nodes


class FreeMemory(Struct, frozen=True):
    resource: str
    allocatable_bytes: int
    free_bytes: int


class MemoryHeadroom(Struct, frozen=True):
    """Free memory of one NUMA node."""

    amounts: tuple[FreeMemory, ...]
    """Allocatable and free bytes of each resource. The tuple is empty under the memory manager's policy None."""
    group: NumaSet | None
    """Group of several nodes that this node belongs to, because memory was allocated on all of them together. None means that it belongs to
    no such group.
    """

    def free_of(self, resource: str) -> int:
        """Return the free bytes of a resource."""
        return next((each.free_bytes for each in self.amounts if each.resource == resource), 0)

    def allocatable_of(self, resource: str) -> int:
        """Return the allocatable bytes of a resource."""
        return next((each.allocatable_bytes for each in self.amounts if each.resource == resource), 0)


class MemoryExplainer(Explainer, frozen=True):
    """Explainer of the memory manager (core/resources/explainer.py)."""

    resource: MemoryResource

    def explain_step(self, event: Allocated, _events: Sequence[ResourceEvent], pod: Pod) -> MemoryStep | None:
        own = event.after.of_pod(pod.uid).of(MemoryHoldings)
        new_blocks = own.pod_memory if event.container is None else own.blocks(event.container)
        before, after = memory_accounts(event.before), memory_accounts(event.after)
        if event.refusal is None and (new_blocks is None or after == before):
            return None
        name = pod.containers[0].name if event.container is None else event.container
        blocks = () if event.refusal is not None or new_blocks is None else new_blocks
        return MemoryStep(
            event.container,
            event.before.hint(pod.uid, name),
            blocks,
            tuple(
                (node.id, resource, old.free - new.free)
                for node, then in zip(before, after, strict=True)
                for (resource, old), (_, new) in zip(node.tables, then.tables, strict=True)
                if old.free != new.free
            ),
            event.refusal is not None,
            bool(blocks and event.spread)
            and all(b.nodes == NumaSet.from_ids(n for n, _ in event.spread) for b in blocks),
        )

    def find_lasting(self, held: PodPromises, apps: frozenset[str]) -> MemoryHoldings:
        """Return the memory of the app containers. Init containers are left out, because they release their memory when later containers
        start.
        """
        memory = held.of(MemoryHoldings)
        for name in set(memory.holders) - apps:
            memory = memory.without(name)
        return memory

    def check_pod(self, pod: PodDemand) -> Refusal | None:
        manager = self.resource.manager
        return check_pod(manager, pod) if manager.static and pod.memory is not None else None

    def find_headroom(
        self, promises: Promises, nodes: Sequence[int], _names: Mapping[str, str], _asking: PodDemand | None
    ) -> tuple[MemoryHeadroom, ...]:
        accounts = {account.id: account for account in memory_accounts(promises)}
        return tuple(
            MemoryHeadroom((), None)
            if (account := accounts.get(node)) is None
            else MemoryHeadroom(
                tuple(FreeMemory(resource, t.allocatable, max(0, t.free)) for resource, t in account.tables),
                None if len(account.cells) < 2 else account.cells,
            )
            for node in nodes
        )

    def count_fewest_nodes(self, promises: Promises, demand: PodDemand | ContainerDemand) -> int:
        return fewest_nodes(promises, demand.memory or ()) if memory_accounts(promises) else 0

    def list_smaller(self, sought: SoughtAmount) -> SmallerAmounts | None:
        """Return smaller requests that a search should try, in steps of whole MiB or pages.

        A trial of one amount is valid only for amounts that need the same number of NUMA nodes. Policy `restricted`, for instance, refuses
        a pod if its memory would need fewer nodes than its CPUs.
        """
        if sought.resource != MEMORY and not sought.resource.startswith(HUGEPAGES_PREFIX):
            return None
        unit = find_smallest_step(sought.resource)
        largest = (sought.bounded - 1) // unit * unit
        least = max(sought.floor, get_least_amount(sought.resource))
        return SmallerAmounts(range(largest, least - 1, -unit), is_by_nodes=True)
