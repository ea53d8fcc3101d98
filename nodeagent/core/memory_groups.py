"""On which groups of NUMA nodes could this much memory come from? The memory manager's hints, as a table over all groups.

Knows the books and what a pod may take over from its init containers; knows no pods' kinds.
"""

from dataclasses import dataclass

from nodeagent.core.demand import Amounts
from nodeagent.core.hints import masks_by_size
from nodeagent.core.idset import NumaSet
from nodeagent.core.memory_accounting import UINT64, Machine, used_cells
from nodeagent.core.promises import Promises


@dataclass(frozen=True, slots=True)
class NodeGroups:
    """Every set of NUMA nodes that memory can come from, in the order of hints."""

    masks: tuple[int, ...]

    @classmethod
    def of(cls, machine: Machine) -> "NodeGroups":
        return cls(masks_by_size([node.id for node in machine]))


def calculated_hints(
    groups: NodeGroups, promises: Promises, uid: str, amounts: Amounts
) -> tuple[tuple[NumaSet, bool], ...]:
    """List (group, preferred): preferred are the groups of the fewest nodes that could hold it on an empty machine."""
    machine = promises.memory
    reuse = promises.memory_reuse
    reusable = {} if reuse is None or reuse.pod_uid != uid else {(n.bits, r): size for (n, r), size in reuse.amounts}
    used = tuple(used_cells(machine))
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
    best = len(machine)
    fitting = []
    for mask in groups.masks:
        if any(sum(a for bit, a, _ in table if mask & bit) & UINT64 < size for _, size, table in tables):
            continue
        count = mask.bit_count()
        best = min(best, count)
        if mask & grouped if count == 1 else any(mask & bit and cells != mask for bit, cells in used):
            continue
        if any(
            (sum(f for bit, _, f in table if mask & bit) + reusable.get((mask, resource), 0)) & UINT64 < size
            for resource, size, table in tables
        ):
            continue
        fitting.append((mask, count))
    return tuple((NumaSet(mask), count == best) for mask, count in fitting) if amounts else ()
