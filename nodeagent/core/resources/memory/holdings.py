"""Memory and huge pages that pods hold, and the accounting of each NUMA node."""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.holdings import remove_item
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.promises import Promises


class Block(Struct, frozen=True):
    """Memory of one resource on a group of NUMA nodes."""

    nodes: NumaSet
    resource: str
    """Name of the resource: `memory` or `hugepages-<size>`."""
    size_bytes: int


Blocks = tuple[Block, ...]
"""Blocks sorted by resource, at most one per resource."""


class MemoryHoldings(Struct, frozen=True):
    """Memory that one pod holds."""

    memory: tuple[tuple[str, Blocks], ...] = ()
    """Blocks by container, sorted by container name."""
    pod_memory: Blocks | None = None
    """Blocks of the pod as a whole, if it has pod-level resources."""

    @property
    def holders(self) -> Iterator[str]:
        return (name for name, _ in self.memory)

    @property
    def size(self) -> int:
        blocks = self.pod_memory or tuple(block for _, own in self.memory for block in own)
        return sum(block.size_bytes for block in blocks)

    def without(self, container: str) -> "MemoryHoldings":
        return MemoryHoldings(remove_item(self.memory, container), self.pod_memory)

    def blocks(self, name: str) -> Blocks | None:
        """Return a container's blocks. None means that the container may use memory on any node."""
        return next((blocks for key, blocks in self.memory if key == name), None)

    def nodes(self, name: str) -> NumaSet:
        """Return the NUMA nodes of a container's blocks."""
        nodes = NumaSet()
        for block in self.blocks(name) or ():
            nodes |= block.nodes
        return nodes


class MemoryTable(Struct, frozen=True):
    """Accounts of one memory resource on one NUMA node, in bytes."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int


class MemoryNode(Struct, frozen=True):
    """The memory manager's accounting of one NUMA node."""

    id: int
    assignments: int
    """Number of assignments on the node. A block counts once for each of its nodes and for each resource."""
    cells: NumaSet
    """Group to which the node belongs. An unused node is a group by itself."""
    tables: tuple[tuple[str, MemoryTable], ...]
    """Tables by resource, sorted by resource."""

    def table(self, resource: str) -> MemoryTable | None:
        return next((table for key, table in self.tables if key == resource), None)


class MemoryReuse(Struct, frozen=True):
    """Memory of a pod's init containers that its later containers may reuse. Only one pod at a time has such memory."""

    pod_uid: str
    amounts: tuple[tuple[tuple[NumaSet, str], int], ...] = ()
    """Reusable bytes by (NUMA nodes, resource)."""

    def amount(self, nodes: NumaSet, resource: str) -> int:
        return next((size for key, size in self.amounts if key == (nodes, resource)), 0)


class MemoryBooks(Struct, frozen=True):
    """The memory manager's accounts for the whole node."""

    nodes: tuple[MemoryNode, ...] = ()
    """Accounts of the NUMA nodes, in ascending order of node IDs. There are none under memory manager policy None."""
    reuse: MemoryReuse | None = None


def memory_accounts(promises: Promises) -> tuple[MemoryNode, ...]:
    """Return the accounts of each NUMA node."""
    return promises.of(MemoryBooks).nodes


def with_memory_accounts(promises: Promises, nodes: tuple[MemoryNode, ...]) -> Promises:
    """Return promises with other accounts of the NUMA nodes."""
    return promises.having(MemoryBooks(nodes, promises.of(MemoryBooks).reuse))


def memory_nodes_of(promises: Promises, uid: str, name: str) -> NumaSet | None:
    """Return the NUMA nodes from which the container's memory must come. None means that any node is allowed."""
    return promises.of_pod(uid).of(MemoryHoldings).nodes(name) or None
