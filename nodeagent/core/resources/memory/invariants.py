"""Checks of the memory manager's promises: violated invariants, and allocations for which the machine has too little memory at present."""

from collections.abc import Iterator

from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.violations import Invariant, NodeOverdrawn, NodesGone, Violation
from nodeagent.core.resources.memory.holdings import memory_accounts
from nodeagent.core.resources.memory.manager import MemoryManager
from nodeagent.core.resources.memory.restore import books_differ, list_charged_blocks


def memory_violations(manager: MemoryManager, promises: Promises) -> Iterator[Violation]:
    """Yield the violated invariants of the accounting. On each node, free and reserved bytes must add up to the allocatable bytes. The
    accounting must also match the allocated blocks.
    """
    if not manager.static:
        return
    for node in memory_accounts(promises):
        for resource, table in node.tables:
            if table.reserved + table.free != table.allocatable:
                present = f"{table.reserved} + {table.free} bytes of {resource} reserved and free"
                difference = f"NUMA node {node.id}: {present}, {table.allocatable} allocatable"
                yield Violation(
                    invariant=Invariant.MEMORY_ADDS_UP, node=node.id, resource=resource, difference=difference
                )
    differing = books_differ(manager, promises)
    if differing is not None:
        yield Violation(invariant=Invariant.MEMORY_IS_OF_THE_PROMISES, difference=differing)


def memory_shortfalls(manager: MemoryManager, promises: Promises) -> Iterator[NodesGone | NodeOverdrawn]:
    """Yield the allocated blocks on NUMA nodes that have disappeared, and the nodes on which more memory is allocated than they have."""
    if not manager.static:
        return
    present = NumaSet.from_ids(node.id for node in memory_accounts(promises))
    for uid, name, block in list_charged_blocks(manager, promises):
        if not block.nodes <= present:
            yield NodesGone(uid, name or None, block.resource, block.nodes - present)
    for node in memory_accounts(promises):
        for resource, table in node.tables:
            if table.free < 0:
                yield NodeOverdrawn(node.id, resource, -table.free)
