"""Explains a refusal in words: the requested amounts, and the amounts missing on the NUMA nodes."""

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.explain.numa_headroom import NodeHeadroom
from nodeagent.core.model.demand import Amounts
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.memory.groups import fewest_nodes
from nodeagent.core.resources.memory.holdings import memory_accounts
from nodeagent.views.wording.words import format_bytes, format_count

_MOST_HOLDERS = 8
FEW_SETS = 3
"""Largest number of NUMA nodes with the same shortage that are all named."""
MOST_NODES = 8
"""Largest number of NUMA nodes listed one by one: the nodes with the smallest shortages."""


class ResourceDemand(Struct, frozen=True):
    """Requested amount of a resource, with the fewest NUMA nodes that could provide it on an empty machine."""

    resource: str
    """Name of the resource. Empty means CPUs."""
    amount: int
    nodes: int
    whole_cores: bool = False
    """Whether only CPUs of entirely free cores count."""

    def format_amount(self, amount: int) -> str:
        """Format an amount of the resource."""
        if not self.resource:
            return format_count(amount, "CPU")
        return f"{format_bytes(amount) if amount else '0'} of {self.resource}"

    def format_free(self, amount: int) -> str:
        """Format a free amount of the resource."""
        return self.format_amount(amount) + (" in whole cores" if self.whole_cores else "")

    def format_missing(self, amount: int) -> str:
        """Format a missing amount."""
        return f"{format_bytes(amount) if self.resource else amount} short"

    def free_on(self, node: NodeHeadroom) -> int:
        """Return the free amount on a node."""
        if not self.resource:
            return len(node.free - node.split if self.whole_cores else node.free)
        return next((m.free_bytes for m in node.memory if m.resource == self.resource), 0)

    def capacity_of(self, node: NodeHeadroom) -> int:
        """Return the amount on a node when it is empty."""
        if not self.resource:
            return len(node.cpus)
        return next((m.allocatable_bytes for m in node.memory if m.resource == self.resource), 0)


def find_demands(cpus: int, memory: Amounts, before: WhatIf) -> list[ResourceDemand]:
    """Return the requested amount of each resource. Memory counts only if the memory manager is static."""
    cpu, books = before.managers.providers.of(CpuResource).manager, before.promises
    demands = [ResourceDemand("", cpus, cpu.layout.fewest_nodes(cpus), cpu.picking.whole_cores)] if cpus else []
    wanted = tuple((resource, size) for resource, size in memory if size and memory_accounts(books))
    return demands + [ResourceDemand(resource, size, fewest_nodes(books, wanted)) for resource, size in wanted]


def require_one_node(demands: Iterable[ResourceDemand]) -> list[ResourceDemand]:
    """Return the amounts of a pod that requires one NUMA node, all on this node."""
    return [replace(demand, nodes=1) for demand in demands]


def format_node_count(demands: Iterable[ResourceDemand]) -> str:
    """Format the number of NUMA nodes."""
    counts = {demand.nodes for demand in demands} or {1}
    if counts == {1}:
        return "on a single NUMA node"
    if len(counts) == 1:
        return f"on {counts.pop()} NUMA nodes, the fewest that could hold it"
    each = ", ".join(f"{demand.resource or 'CPUs'} on {demand.nodes}" for demand in demands)
    return f"each on the fewest NUMA nodes that could hold it: {each}"


def describe_shortages(demands: Sequence[ResourceDemand], nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    """Describe the shortages of all nodes together, then the shortages of each node, smallest first."""
    yield from describe_total_shortages([demand for demand in demands if demand.nodes > 1], nodes)
    described = []
    for node in nodes:
        text = _describe_node(demands, node)
        if text:  # sort by the first resource: CPUs, if requested
            demand = demands[0]
            wanted = demand.amount if demand.nodes == 1 else demand.capacity_of(node)
            described.append((wanted - demand.free_on(node), node.id, text))
    described.sort()
    yield from (text for _, _, text in described[:MOST_NODES])
    more = len(described) - MOST_NODES
    if more > 0:
        yield f"and {format_count(more, 'NUMA node')} that {'have' if more > 1 else 'has'} less"


def describe_total_shortages(demands: Iterable[ResourceDemand], nodes: Sequence[NodeHeadroom]) -> Iterator[str]:
    """Describe the shortages of all nodes together, or of as many as are needed."""
    for demand in demands:
        free = sorted((demand.free_on(node) for node in nodes), reverse=True)
        total, largest = sum(free), sum(free[: demand.nodes])
        if total < demand.amount:
            missing = demand.format_missing(demand.amount - total)
            yield f"{demand.format_free(total)} can still be allocated in total: {missing}"
        elif demand.nodes > 1 and largest < demand.amount:
            missing = demand.format_missing(demand.amount - largest)
            yield f"no {demand.nodes} NUMA nodes together have more than {demand.format_free(largest)} free: {missing}"


def _describe_node(demands: Sequence[ResourceDemand], node: NodeHeadroom) -> str:
    """Describe the shortages of a node. Empty if the node has everything."""
    parts = []
    for demand in demands:
        free, has = demand.free_on(node), demand.capacity_of(node)
        if demand.resource and not node.memory:
            continue
        of = "" if demand.resource else f" of {has}"
        if demand.whole_cores and node.split:
            of += f" ({node.split} are in partly used cores)"
        if demand.nodes == 1 and free < demand.amount:
            parts.append(f"{demand.format_free(free)} free{of}, {demand.format_missing(demand.amount - free)}")
        elif demand.nodes > 1 and free < has:
            parts.append(f"{demand.format_free(free)} free{of or f', of {format_bytes(has)}'}")
    if node.group is not None and any(demand.resource for demand in demands):
        parts.append(f"its memory is allocated only together with that of NUMA {node.group}")
    if not parts:
        return ""
    return f"NUMA {node.id}: {'; '.join(parts)}{format_holders(node)}"


def format_holders(node: NodeHeadroom) -> str:
    """Name the owners of a node's CPUs in brackets. Empty without owners."""
    holders = [f"{h.pod} {h.container or ''}".rstrip() + f" has {h.cpus}" for h in node.holders]
    more = len(holders) - _MOST_HOLDERS
    held = ", ".join(holders if more <= 0 else [*holders[:_MOST_HOLDERS], f"and {more} more (-o json has all)"])
    reserved = f"reserved {node.reserved}" if node.reserved else ""
    taken = "; ".join(part for part in (held, reserved) if part)
    return f" ({taken})" if taken else ""


def format_node_sets(sets: Sequence[str]) -> str:
    """Format sets of nodes with the same result. A few are all named, more are replaced by an example and their number."""
    return " or ".join(sets) if len(sets) <= FEW_SETS else f"{sets[0]} and {len(sets) - 1} more sets"
