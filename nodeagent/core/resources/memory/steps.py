"""Allocations of memory as steps of an explanation."""

from collections.abc import Sequence

from msgspec import Struct

from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Hint, Promises
from nodeagent.core.resources.memory.holdings import Blocks, MemoryHoldings, memory_accounts
from nodeagent.core.resources.resource import Allocated


class MemoryStep(Struct, frozen=True):
    """Allocation of memory to a container, or to a pod as a whole."""

    container: str | None
    hint: Hint
    blocks: Blocks
    """Allocated blocks. Empty after a refusal."""
    taken: tuple[tuple[int, str, int], ...]
    """(NUMA node, resource, bytes) for newly allocated memory. The rest of the blocks is reused from init containers."""
    refused: bool
    is_spread: bool = False
    """Whether the memory is on the NUMA nodes of the container's CPUs, in proportion to them (spreadHugePages)."""

    @property
    def nodes(self) -> NumaSet:
        nodes = NumaSet()
        for block in self.blocks:
            nodes |= block.nodes
        return nodes


def memory_step(event: Allocated, _picks: Sequence[object], pod: Pod) -> MemoryStep | None:
    """Describe an allocation. None means that nothing was allocated."""
    after = event.after.of_pod(pod.uid)
    new_blocks = (
        after.of(MemoryHoldings).pod_memory
        if event.container is None
        else after.of(MemoryHoldings).blocks(event.container)
    )
    if event.refusal is None and (new_blocks is None or memory_accounts(event.after) == memory_accounts(event.before)):
        return None
    name = pod.containers[0].name if event.container is None else event.container
    blocks = () if event.refusal is not None or new_blocks is None else new_blocks
    return MemoryStep(
        event.container,
        event.before.hint(pod.uid, name),
        blocks,
        _taken(event.before, event.after),
        event.refusal is not None,
        bool(blocks and event.spread) and all(b.nodes == NumaSet.from_ids(n for n, _ in event.spread) for b in blocks),
    )


def _taken(before: Promises, after: Promises) -> tuple[tuple[int, str, int], ...]:
    return tuple(
        (node.id, resource, old.free - new.free)
        for node, then in zip(memory_accounts(before), memory_accounts(after), strict=True)
        for (resource, old), (_, new) in zip(node.tables, then.tables, strict=True)
        if old.free != new.free
    )
