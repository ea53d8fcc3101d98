"""Records of the memory manager: memory and huge pages that pods hold, and the accounting of each NUMA node."""

from collections.abc import Iterator

from msgspec import Struct

from nodeagent.core.model.holdings import remove_item
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.promises import Promises


class Block(Struct, frozen=True):
    """Allocated amount of one memory resource on a group of NUMA nodes."""

    nodes: NumaSet
    resource: str
    """Name of the resource: `memory` or `hugepages-<size>`."""
    size_bytes: int


Blocks = tuple[Block, ...]
"""Blocks of one container or pod, sorted by resource. There is at most one block per resource."""


class MemoryHoldings(Struct, frozen=True):
    """Memory that one pod holds."""

    memory: tuple[tuple[str, Blocks], ...] = ()
    """Allocated blocks by container, sorted by container name."""
    pod_memory: Blocks | None = None
    """Blocks of a pod with pod-level memory. None means that memory is allocated to the containers separately."""

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
        """Return a container's blocks. None means that no memory is allocated to the container, so it may use any NUMA node."""
        return next((blocks for key, blocks in self.memory if key == name), None)

    def nodes(self, name: str) -> NumaSet:
        """Return the NUMA nodes of a container's blocks. The set is empty if no memory is allocated to the container."""
        nodes = NumaSet()
        for block in self.blocks(name) or ():
            nodes |= block.nodes
        return nodes


class MemoryTable(Struct, frozen=True):
    """Accounting of one memory resource on one NUMA node, in bytes."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int


class MemoryNode(Struct, frozen=True):
    """Accounting of one NUMA node."""

    id: int
    assignments: int
    """Number of blocks on the node. Each block counts on each of its nodes."""
    cells: NumaSet
    """Group of nodes to which this node belongs. If no memory is allocated on the node, the group is the node alone."""
    tables: tuple[tuple[str, MemoryTable], ...]
    """Accounting of each resource, sorted by resource name."""

    def table(self, resource: str) -> MemoryTable | None:
        return next((table for key, table in self.tables if key == resource), None)


class MemoryReuse(Struct, frozen=True):
    """Memory of a pod's init containers that later containers of this pod may reuse. The record is removed at the end of the pod's
    admission or, with Erratum.REUSE_OUTLIVES_POD, when the next pod gets memory. There is therefore at most one.
    """

    pod_uid: str
    amounts: tuple[tuple[tuple[NumaSet, str], int], ...] = ()
    """Reusable bytes by group of NUMA nodes and resource."""

    def amount(self, nodes: NumaSet, resource: str) -> int:
        return next((size for key, size in self.amounts if key == (nodes, resource)), 0)


class MemoryBooks(Struct, frozen=True):
    """Node-wide records of the memory manager."""

    nodes: tuple[MemoryNode, ...] = ()
    """Accounting of all NUMA nodes, in ascending order of their IDs. The tuple is empty under the memory manager's policy None."""
    reuse: MemoryReuse | None = None


def memory_accounts(promises: Promises) -> tuple[MemoryNode, ...]:
    """Return the accounting of all NUMA nodes."""
    return promises.of(MemoryBooks).nodes


def with_memory_accounts(promises: Promises, nodes: tuple[MemoryNode, ...]) -> Promises:
    """Return a copy of the promises with this accounting of the NUMA nodes."""
    return promises.having(MemoryBooks(nodes, promises.of(MemoryBooks).reuse))


def memory_nodes_of(promises: Promises, uid: str, name: str) -> NumaSet | None:
    """Return the NUMA nodes that the container's memory must come from. None means that it may come from any node."""
    return promises.of_pod(uid).of(MemoryHoldings).nodes(name) or None
