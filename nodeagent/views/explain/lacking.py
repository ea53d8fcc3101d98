"""What a refused request needed from the NUMA nodes, and what they lack, in plain words."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.explain.numa_headroom import NodeHeadroom
from nodeagent.core.explain.what_if import WhatIf
from nodeagent.core.model.demand import Amounts
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.groups import fewest_nodes
from nodeagent.core.resources.memory.holdings import memory_accounts
from nodeagent.views.wording.words import bytes_text, counted

_MOST_HOLDERS = 8
FEW_SETS = 3
"""Up to this many NUMA nodes are all named if they lack the same."""
MOST_NODES = 8
"""Of more nodes only the best are listed one by one."""


class Demanded(Struct, frozen=True):
    """An amount of one resource, on as few NUMA nodes as could hold it on an empty machine."""

    resource: str
    """Empty: CPUs."""
    amount: int
    nodes: int
    whole_cores: bool = False
    """Of CPUs only those count whose cores are entirely free."""

    def size(self, amount: int) -> str:
        """Spell an amount of it."""
        if not self.resource:
            return counted(amount, "CPU")
        return f"{bytes_text(amount) if amount else '0'} of {self.resource}"

    def can_give(self, amount: int) -> str:
        """Spell an amount that is free for it."""
        return self.size(amount) + (" in whole cores" if self.whole_cores else "")

    def short(self, amount: int) -> str:
        """Spell a missing amount."""
        return f"{bytes_text(amount) if self.resource else amount} short"

    def free(self, node: NodeHeadroom) -> int:
        """How much of it a node can still allocate."""
        if not self.resource:
            return len(node.free - node.split if self.whole_cores else node.free)
        return next((m.free_bytes for m in node.memory if m.resource == self.resource), 0)

    def has(self, node: NodeHeadroom) -> int:
        """How much of it a node could allocate if it were empty."""
        if not self.resource:
            return len(node.cpus)
        return next((m.allocatable_bytes for m in node.memory if m.resource == self.resource), 0)


def demands_of(cpus: int, memory: Amounts, before: WhatIf) -> list[Demanded]:
    """Return a demand for each requested resource; memory counts where the nodes' memory is managed."""
    cpu, books = before.managers.providers.of(CpuResource).manager, before.promises
    demands = [Demanded("", cpus, cpu.layout.fewest_nodes(cpus), cpu.picking.whole_cores)] if cpus else []
    wanted = tuple((resource, size) for resource, size in memory if size and memory_accounts(books))
    return demands + [Demanded(resource, size, fewest_nodes(books, wanted)) for resource, size in wanted]


def on_one_node(demands: Iterable[Demanded]) -> list[Demanded]:
    """Return the demands of a pod that asks for a NUMA node: all on that node."""
    return [replace(demand, nodes=1) for demand in demands]


def wanted_where(demands: Iterable[Demanded]) -> str:
    """Name the number of NUMA nodes."""
    counts = {demand.nodes for demand in demands} or {1}
    if counts == {1}:
        return "on a single NUMA node"
    if len(counts) == 1:
        return f"on {counts.pop()} NUMA nodes, the fewest that could hold it"
    each = ", ".join(f"{demand.resource or 'CPUs'} on {demand.nodes}" for demand in demands)
    return f"each on the fewest NUMA nodes that could hold it: {each}"


def lacking(demands: Sequence[Demanded], nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    """Describe what the nodes together have too little of, then each node: the closest ones first."""
    yield from lacking_in_all([demand for demand in demands if demand.nodes > 1], nodes)
    described = [(_distance(demands, node), node.id, text) for node in nodes if (text := _of_node(demands, node))]
    described.sort()
    yield from (text for _, _, text in described[:MOST_NODES])
    if len(described) > MOST_NODES:
        yield f"and {counted(len(described) - MOST_NODES, 'NUMA node')} that {'have' if len(described) > MOST_NODES + 1 else 'has'} less"


def lacking_in_all(demands: Iterable[Demanded], nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    """Describe what all nodes together, or as many as are wanted, have too little of."""
    for demand in demands:
        free = sorted((demand.free(node) for node in nodes), reverse=True)
        most = sum(free[: demand.nodes])
        if sum(free) < demand.amount:
            yield f"in all {demand.can_give(sum(free))} can still be given: {demand.short(demand.amount - sum(free))}"
        elif demand.nodes > 1 and most < demand.amount:
            yield f"no {demand.nodes} NUMA nodes have more than {demand.can_give(most)} free together: {demand.short(demand.amount - most)}"


def _distance(demands: Sequence[Demanded], node: NodeHeadroom) -> int:
    """How far the free amount of the first resource (CPUs, if requested) falls short: of the request if one node could hold it, otherwise
    of everything that the node has.
    """
    demand = demands[0]
    return (demand.amount if demand.nodes == 1 else demand.has(node)) - demand.free(node)


def _of_node(demands: Sequence[Demanded], node: NodeHeadroom) -> str:
    """Describe what a node has too little of; empty if it has everything."""
    parts = []
    for demand in demands:
        free, has = demand.free(node), demand.has(node)
        if demand.resource and not node.memory:
            continue
        of = "" if demand.resource else f" of {has}"
        if demand.whole_cores and node.split:
            of += f" ({node.split} are halves of cores)"
        if demand.nodes == 1 and free < demand.amount:
            parts.append(f"{demand.can_give(free)} free{of}, {demand.short(demand.amount - free)}")
        elif demand.nodes > 1 and free < has:
            parts.append(f"{demand.can_give(free)} free{of or f', of {bytes_text(has)}'}")
    if node.group is not None and any(demand.resource for demand in demands):
        parts.append(f"its memory is given only together with that of NUMA {node.group}")
    if not parts:
        return ""
    return f"NUMA {node.id}: {'; '.join(parts)}{taken_text(node)}"


def taken_text(node: NodeHeadroom) -> str:
    """Name the owners of its CPUs, in brackets; empty if there are none."""
    holders = [f"{h.pod} {h.container or ''}".rstrip() + f" has {h.cpus}" for h in node.holders]
    more = len(holders) - _MOST_HOLDERS
    held = ", ".join(holders if more <= 0 else [*holders[:_MOST_HOLDERS], f"and {more} more (-o json has all)"])
    reserved = f"reserved {node.reserved}" if node.reserved else ""
    taken = "; ".join(part for part in (held, reserved) if part)
    return f" ({taken})" if taken else ""


def sets_text(sets: Sequence[str]) -> str:
    """Name sets of nodes with the same result: a few as they are, of more an example and their number."""
    return " or ".join(sets) if len(sets) <= FEW_SETS else f"{sets[0]} and {len(sets) - 1} more sets"
