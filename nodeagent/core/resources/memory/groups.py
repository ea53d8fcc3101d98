"""Search for groups of NUMA nodes that could provide an amount of memory. These groups are the hints of the memory manager.

For each request, a table is built with the free and allocatable memory of all nodes, and with the memory that the pod may reuse from its
init containers.
"""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.demand import Amounts
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.promises import Promises
from nodeagent.core.numa import hint_family
from nodeagent.core.numa.hint_family import MAX_STEPS, HintFamily, Hints
from nodeagent.core.numa.hints import masks_by_size
from nodeagent.core.numa.node_search import Cover, Steps, fittest_cover, narrowest
from nodeagent.core.resources.memory.accounting import UINT64, NodeAccounts, used_cells
from nodeagent.core.resources.memory.holdings import MemoryBooks, memory_accounts


class NodeGroups(Struct, frozen=True):
    """All sets of NUMA nodes with memory that could be hints, in the order of hints. The tuple is empty if there are too many
    sets to list.
    """

    masks: tuple[NumaMask, ...]

    @classmethod
    def of(cls, machine: NodeAccounts) -> "NodeGroups":
        # In kubelet, sums of absurd amounts wrap around (Erratum.ABSURD_AMOUNTS). Here they wrap around on up to 8 nodes, which is
        # kubelet's limit.
        has_absurd_amounts = any(t.allocatable > t.total for node in machine for _, t in node.tables)
        is_small = len(machine) <= (8 if has_absurd_amounts else hint_family.MAX_LISTED_NODES)
        return cls(masks_by_size([node.id for node in machine]) if is_small else ())


def calculate_hints(groups: NodeGroups, promises: Promises, uid: str, amounts: Amounts) -> Hints:
    """Return the groups of nodes that could provide the amounts, as hints. A group is preferred if it has no more nodes than the amounts
    need on an empty machine.

    The same hints apply to all memory resources of the request. The result is empty if no group could provide the amounts.
    """
    if not amounts:
        return ()
    books = _build_table(promises, uid, amounts)
    return _list_groups(groups, books) if groups.masks else _describe_groups(books)


def best_group(
    groups: NodeGroups, promises: Promises, uid: str, amounts: Amounts, inside: NumaSet = NumaSet()
) -> tuple[NumaSet, bool] | None:
    """Choose the best group that contains the nodes `inside`. Also return whether this group is preferred as a hint. None means that no
    group is suitable.
    """
    hints = calculate_hints(groups, promises, uid, amounts)
    if isinstance(hints, HintFamily):
        candidates = [*hints.listed, *_find_best_covered(hints, inside.bits)]
    else:
        candidates = [(mask, preferred) for mask, preferred in hints if mask is not None]
    wider = [(mask, preferred) for mask, preferred in candidates if not inside.bits & ~mask]
    best = min(wider, key=lambda c: (not c[1], c[0].bit_count(), c[0]), default=None)
    return None if best is None else (NumaSet(best[0]), best[1])


def fewest_nodes(promises: Promises, amounts: Amounts) -> int:
    """Return the smallest number of NUMA nodes that could provide the amounts on an empty machine. If the machine has too little memory,
    return the number of all nodes.
    """
    return _count_fewest_nodes(_build_table(promises, "", amounts)) if amounts else 0


class _RequestTable(Struct, frozen=True):
    """Memory of all nodes, as tables for the fast evaluation of one request."""

    machine: NodeAccounts
    tables: list[tuple[str, int, list[tuple[int, int, int]]]]
    """Tables by resource, as (resource, requested bytes, [(bit of the node, allocatable bytes, free bytes)])."""
    reusable: Mapping[tuple[NumaMask, str], int]
    """Bytes of init containers that the pod may reuse, by group of nodes and resource."""
    used: tuple[tuple[NumaMask, NumaMask], ...]
    grouped: NumaMask
    """Nodes that are in use in a group of several nodes."""

    def could_hold(self, mask: NumaMask) -> bool:
        """Return whether the nodes would have enough memory if none were allocated."""
        return all(sum(a for bit, a, _ in table if mask & bit) & UINT64 >= size for _, size, table in self.tables)

    def fits(self, mask: NumaMask) -> bool:
        """Return whether the nodes have enough free memory, and don't overlap a different group in use."""
        if mask & self.grouped if mask.bit_count() == 1 else any(mask & bit and c != mask for bit, c in self.used):
            return False
        return all(
            (sum(f for bit, _, f in table if mask & bit) + self.reusable.get((mask, resource), 0)) & UINT64 >= size
            for resource, size, table in self.tables
        )


def _build_table(promises: Promises, uid: str, amounts: Amounts) -> _RequestTable:
    machine = memory_accounts(promises)
    reuse = promises.of(MemoryBooks).reuse
    reusable = {} if reuse is None or reuse.pod_uid != uid else {(n.bits, r): size for (n, r), size in reuse.amounts}
    tables = [
        (
            resource,
            size,
            [(1 << n.id, t.allocatable, max(t.free, 0)) for n in machine if (t := n.table(resource)) is not None],
        )
        for resource, size in amounts
    ]
    grouped = 0
    for node in machine:
        if len(node.cells) > 1:
            grouped |= 1 << node.id
    return _RequestTable(machine, tables, reusable, tuple(used_cells(machine)), NumaMask(grouped))


def _list_groups(groups: NodeGroups, books: _RequestTable) -> Hints:
    best = len(books.machine)
    fitting = []
    for mask in groups.masks:
        if books.could_hold(mask):
            count = mask.bit_count()
            best = min(best, count)
            if books.fits(mask):
                fitting.append((mask, count))
    return tuple((mask, count == best) for mask, count in fitting)


def _describe_groups(books: _RequestTable) -> Hints:
    """Return the hints as conditions (`HintFamily`) instead of a list, because there are too many groups. Single nodes and groups in use
    are listed. Other groups consist of unused nodes, and are described by a `Cover`.
    """
    every = [NumaMask(1 << node.id) for node in books.machine]
    best = _count_fewest_nodes(books)
    in_use = 0
    for bit, _ in books.used:
        in_use |= bit
    known = {*every, *(cells for _, cells in books.used), *(mask for mask, _ in books.reusable)}
    listed = tuple(
        (mask, mask.bit_count() == best) for mask in sorted(known) if books.could_hold(mask) and books.fits(mask)
    )
    cover = _make_cover(books, [bit for bit in every if not bit & in_use], allocatable=False)
    if not cover.is_empty:
        return HintFamily(listed, cover, best)
    return HintFamily(listed, None, best) if listed else ()


def _count_fewest_nodes(books: _RequestTable) -> int:
    every = [NumaMask(1 << node.id) for node in books.machine]
    narrow = narrowest(_make_cover(books, every, allocatable=True), Steps(MAX_STEPS))
    return len(every) if narrow is None else narrow.bit_count()


def _make_cover(books: _RequestTable, nodes: list[NumaMask], *, allocatable: bool) -> Cover:
    """Return the conditions for sets of these nodes that have enough memory. If `allocatable` is true, all allocatable memory counts.
    Otherwise only free memory counts, and sets must have at least two nodes, because single nodes are listed separately.
    """
    tables = [{bit: a if allocatable else min(a, f) for bit, a, f in table} for _, _, table in books.tables]
    return Cover(
        universe=NumaMask(sum(nodes)),
        needs=tuple(size for _, size, _ in books.tables),
        amounts=tuple((bit.bit_length() - 1, tuple(table.get(bit, 0) for table in tables)) for bit in nodes),
        least=1 if allocatable else 2,
    )


def _find_best_covered(family: HintFamily, inside: NumaMask) -> list[tuple[NumaMask, bool]]:
    """Return the best preferred set of nodes that is described by the family's `Cover` and contains the nodes `inside`. If no such set is
    preferred, return the one with the fewest nodes. The list has at most one element.
    """
    if family.cover is None:
        return []
    cover = family.cover.within(family.cover.universe, forced=inside)
    if cover.is_empty:
        return []
    steps = Steps(MAX_STEPS)
    preferred = fittest_cover(cover, family.preferred_count, steps)
    best_set = narrowest(cover, steps) if preferred is None else preferred
    return [] if best_set is None else [(best_set, best_set.bit_count() == family.preferred_count)]
