"""The memory manager's accounting. It has the memory of each NUMA node, and changes with allocations from groups of nodes and with
releases.

A block is memory on one node or on a group of nodes. All blocks on a node belong to the same group, or to this node alone.
"""

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.pod import HUGEPAGES_PREFIX, MEMORY
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.memory.holdings import Blocks, MemoryNode, MemoryTable

UINT64 = 2**64 - 1
"""Largest value before kubelet's sums and differences wrap around. Without errata, no amount comes near this value."""

NodeAccounts = tuple[MemoryNode, ...]
"""Accounts of all NUMA nodes, in ascending order of their IDs."""


def initial_machine(topology: Topology, reserved: Mapping[tuple[int, str], int]) -> NodeAccounts:
    """Create the accounting of a machine without allocations.

    Args:
        topology: the NUMA nodes with memory and huge pages.
        reserved: bytes by (NUMA node, resource).
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
    """Move up to `size` bytes from free to reserved. Each node of the group gets one more assignment.

    Args:
        machine: the accounts.
        nodes: the group.
        resource: the resource.
        size: the number of bytes.
        spread: nodes with their shares. Each node provides its share in whole pages, as far as pages are free. The rest is taken from
            the lowest nodes first, and so is everything if `spread` is empty.
    """
    for node, share in _share_out(size, page_size(resource), spread):
        machine, missing = _take_free(machine, NumaSet.of(node), resource, share, 1, group=nodes)
        size -= share - max(0, missing)
    return _take_free(machine, nodes, resource, size, 0 if spread else 1)[0]


def page_size(resource: str) -> int:
    """Return the page size of a resource in bytes. `hugepages-2Mi` has pages of 2 MiB, and regular memory has pages of 4 KiB."""
    name = resource.removeprefix(HUGEPAGES_PREFIX)
    return 4096 if name == resource else Quantity.parse(name).value()


def _share_out(size: int, page: int, spread: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """Divide bytes by shares. Each node gets whole pages, within one page of its exact share. An incomplete page goes to the last node."""
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
    """Take free bytes as `take` does without shares. Also return the number of bytes that could not be taken. `nodes` may be a part of
    the group.
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
    """Move `size` bytes, which belong to `count` blocks, from free to reserved.

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
    """Move the blocks' bytes back from reserved to free, on the lowest node first. In a group of several nodes, only the sums over the
    group are meaningful.
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
    """Return the free bytes of the resource on a group of nodes."""
    # If the capacity of a node has shrunk, more memory may be allocated than the node has. Such a node has no free memory.
    return (
        sum(t.free for n in machine if n.id in nodes and (t := n.table(resource)) is not None and t.free > 0) & UINT64
    )


def breaks_group(machine: NodeAccounts, nodes: NumaSet) -> bool:
    """Tell whether a block on these nodes would share a node with blocks of a different group of nodes."""
    return any(node.id in nodes and node.assignments > 0 and node.cells != nodes for node in machine)


def used_cells(machine: NodeAccounts) -> Iterable[tuple[NumaMask, NumaMask]]:
    """Yield each used node and its group of nodes, both as bitmasks."""
    return ((NumaMask(1 << node.id), node.cells.bits) for node in machine if node.assignments > 0)
