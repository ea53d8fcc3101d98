"""The memory manager's accounting: free and allocated bytes of each NUMA node, and how allocations and releases change them.

A block is memory that is allocated on one NUMA node, or on a group of several nodes together. As in kubelet, a node belongs to at most one
group, so all blocks on a node have the same set of nodes.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.pod import HUGEPAGES_PREFIX, MEMORY
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.memory.holdings import Blocks, MemoryNode, MemoryTable

UINT64 = 2**64 - 1
"""Largest unsigned 64-bit number. kubelet's sums and differences wrap around beyond it, which matters only if kubelet's errata are
reproduced.
"""

NodeAccounts = tuple[MemoryNode, ...]
"""Accounting of all NUMA nodes, in ascending order of their IDs."""


def initial_machine(topology: Topology, reserved: Mapping[tuple[int, str], int]) -> NodeAccounts:
    """Create the accounting of a machine without allocations.

    Args:
        topology: the machine, whose NUMA nodes have memory and huge pages.
        reserved: reserved bytes by NUMA node and resource.
    """
    nodes = []
    for node in topology.numa:
        pages = sum(size for _, size in node.hugepages)
        tables = [(name, _make_table(size, reserved.get((node.id, name), 0), 0)) for name, size in node.hugepages]
        tables.append((MEMORY, _make_table(node.memory_bytes, reserved.get((node.id, MEMORY), 0), pages)))
        nodes.append(MemoryNode(node.id, 0, NumaSet.of(node.id), tuple(sorted(tables))))
    return tuple(nodes)


def _make_table(total: int, reserved: int, pages: int) -> MemoryTable:
    allocatable = total - reserved - pages & UINT64
    return MemoryTable(total, reserved, allocatable, 0, allocatable)


def take(
    machine: NodeAccounts, nodes: NumaSet, resource: str, size: int, spread: tuple[tuple[int, int], ...] = ()
) -> NodeAccounts:
    """Allocate up to `size` bytes on a group of nodes, by moving them from free to reserved. The number of assignments of each node in the
    group grows by one.

    Args:
        machine: the accounting of all nodes.
        nodes: the group of nodes.
        resource: the resource.
        size: the number of bytes.
        spread: pairs of node and share, by which the bytes are divided. A node with too few free pages provides less than its share, and
            the rest is taken from the nodes with the lowest IDs first. If the tuple is empty, all bytes are taken in this way.
    """
    for node, share in _share_out(size, page_size(resource), spread):
        machine, missing = _take_free(machine, NumaSet.of(node), resource, share, 1, group=nodes)
        size -= share - max(0, missing)
    return _take_free(machine, nodes, resource, size, 0 if spread else 1)[0]


def page_size(resource: str) -> int:
    """Return the page size of a resource in bytes: 2 MiB for `hugepages-2Mi`, 4 KiB for regular memory."""
    name = resource.removeprefix(HUGEPAGES_PREFIX)
    return 4096 if name == resource else Quantity.parse(name).value()


def _share_out(size: int, page: int, spread: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Divide bytes among nodes in proportion to their shares. Each node gets whole pages, rounded to within one page of its exact share. If
    `size` isn't a whole number of pages, the last node gets the incomplete page.
    """
    whole, given, shares = sum(share for _, share in spread), 0, []
    so_far = 0
    for node, share in spread:
        so_far += share
        end = size if so_far == whole else size * so_far // whole // page * page
        shares.append((node, end - given))
        given = end
    return shares


def _take_free(
    machine: NodeAccounts, nodes: NumaSet, resource: str, size: int, count: int = 1, group: NumaSet | None = None
) -> tuple[NodeAccounts, int]:
    """Move up to `size` bytes from free to reserved, on the nodes with the lowest IDs first. Also return how many bytes could not be moved.

    `count` is added to the number of assignments of each node. `group` is the group of the block, if `nodes` are only a part of it.
    """
    changed = []
    for node in machine:
        if node.id not in nodes:
            changed.append(node)
            continue
        table = node.table(resource)
        moved = 0 if table is None else max(0, min(table.free, size))
        size -= moved
        changed.append(
            MemoryNode(node.id, node.assignments + count, group or nodes, _move_bytes(node.tables, resource, moved))
        )
    return tuple(changed), size


def charge(machine: NodeAccounts, nodes: NumaSet, resource: str, size: int, count: int = 1) -> NodeAccounts:
    """Move `size` bytes from free to reserved, even if fewer bytes are free. They belong to `count` blocks.

    Nodes that don't exist are skipped. If too few bytes are free, the free bytes of the group's lowest node become negative.
    """
    machine, missing = _take_free(machine, nodes, resource, size, count)
    if missing <= 0:
        return machine
    changed = []
    for node in machine:
        if missing > 0 and node.id in nodes and node.table(resource) is not None:
            changed.append(replace(node, tables=_move_bytes(node.tables, resource, missing)))
            missing = 0
        else:
            changed.append(node)
    return tuple(changed)


def release(machine: NodeAccounts, blocks: Blocks) -> NodeAccounts:
    """Move the blocks' bytes back from reserved to free, on the node with the lowest ID first. In a group of several nodes, the bytes may
    return to another node than they came from, so only sums over the group are meaningful.
    """
    for block in blocks:
        size = block.size_bytes
        changed = []
        for node in machine:
            if node.id not in block.nodes:
                changed.append(node)
                continue
            table = node.table(block.resource)
            moved = 0 if table is None else min(table.reserved, size)
            size -= moved
            assignments = node.assignments - 1
            cells = node.cells if assignments else NumaSet.of(node.id)
            changed.append(MemoryNode(node.id, assignments, cells, _move_bytes(node.tables, block.resource, -moved)))
        machine = tuple(changed)
    return machine


def _move_bytes(
    tables: tuple[tuple[str, MemoryTable], ...], resource: str, size: int
) -> tuple[tuple[str, MemoryTable], ...]:
    if size == 0:
        return tables
    return tuple(
        [
            (name, MemoryTable(t.total, t.system_reserved, t.allocatable, t.reserved + size, t.free - size))
            if name == resource
            else (name, t)
            for name, t in tables
        ]
    )


def free_of(machine: NodeAccounts, nodes: NumaSet, resource: str) -> int:
    """Return the free bytes of the resource, summed over a group of nodes."""
    # If the capacity of a node has shrunk, more memory may be allocated than the node has. Such a node has no free memory.
    return (
        sum(t.free for n in machine if n.id in nodes and (t := n.table(resource)) is not None and t.free > 0) & UINT64
    )


def breaks_group(machine: NodeAccounts, nodes: NumaSet) -> bool:
    """Return whether a block on these nodes would overlap another group, because one of the nodes is already used with a different set of
    nodes.
    """
    return any(node.id in nodes and node.assignments > 0 and node.cells != nodes for node in machine)


def used_cells(machine: NodeAccounts) -> Iterable[tuple[NumaMask, NumaMask]]:
    """Yield each node that has blocks, with its group of nodes, both as bitmasks."""
    return ((NumaMask(1 << node.id), node.cells.bits) for node in machine if node.assignments > 0)
