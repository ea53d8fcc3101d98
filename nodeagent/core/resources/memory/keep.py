"""Memory of pods when the agent starts with a lost state, or on a changed machine or configuration. Pods keep their memory where possible,
and the differences are reported.
"""

from collections.abc import Iterator, Mapping, Sequence

from nodeagent.core.model.cgroup import Attribute, ObservedCgroup
from nodeagent.core.model.demand import ContainerDemand, PodDemand
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import MEMORY, ContainerKind, Pod
from nodeagent.core.model.promises import Promises, with_pod
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.violations import MachineChange
from nodeagent.core.resources.memory.accounting import breaks_group, charge
from nodeagent.core.resources.memory.holdings import (
    Block,
    Blocks,
    MemoryHoldings,
    memory_accounts,
    with_memory_accounts,
)
from nodeagent.core.resources.memory.manager import MemoryManager
from nodeagent.core.resources.resource import AGAIN, HoldingChange

_KIB = 1024
_MOST_WOBBLE_BYTES = 2**26
_WOBBLE_SHARE = 1000
"""Divisor of a node's memory. A change of the amount of memory up to the quotient is normal after a boot, because the kernel reserves a
slightly different part for itself each time, some KiB to a few MiB. A larger change means that the hardware was changed.
"""


def find_memory_in_cgroups(
    entry: PodEntry, demand: PodDemand, groups: Mapping[str, ObservedCgroup | None], *, by_pod: bool
) -> MemoryHoldings:
    """Derive the memory of a running pod from the `cpuset.mems` of its cgroups and from its requests."""
    nodes = {name: mems for name, group in groups.items() if group is not None and (mems := _get_mems(group))}
    if by_pod:
        return _find_blocks_by_pod(demand, nodes)
    return MemoryHoldings(tuple(sorted(_find_blocks_by_container(entry, demand, nodes))))


def _find_blocks_by_container(
    entry: PodEntry, demand: PodDemand, nodes: Mapping[str, NumaSet]
) -> Iterator[tuple[str, Blocks]]:
    """Yield each container's memory. Memory that init containers request in addition to later containers is counted once, for the first
    init container that hasn't released its memory yet.
    """
    lasting: dict[str, int] = {}
    peak: dict[str, int] = {}
    for container in demand.containers:
        sums = peak if container.kind is ContainerKind.INIT else lasting
        for resource, size in container.memory or ():
            sums[resource] = max(sums.get(resource, 0), size) if sums is peak else sums.get(resource, 0) + size
    left = {resource: max(0, size - lasting.get(resource, 0)) for resource, size in peak.items()}
    for position, container in enumerate(demand.containers):
        if not container.memory or container.name not in nodes:
            continue
        amounts = container.memory
        if container.kind is ContainerKind.INIT:
            if any(status.attempt for status in entry.containers[position + 1 :]):
                continue  # the container's memory was released when a later container started
            amounts = tuple((resource, left.pop(resource, 0)) for resource, _ in amounts)
        yield container.name, _make_blocks(nodes[container.name], amounts)


def _find_blocks_by_pod(demand: PodDemand, nodes: Mapping[str, NumaSet]) -> MemoryHoldings:
    groups = set(nodes.values())
    if len(groups) != 1 or len(nodes) != len(demand.containers) or not demand.memory:
        return MemoryHoldings()
    if any(c.memory is None for c in demand.containers):
        return MemoryHoldings()
    group = groups.pop()
    left = dict(demand.memory)
    for container in demand.containers:
        for resource, size in container.memory or () if container.kind is not ContainerKind.INIT else ():
            left[resource] = max(0, left.get(resource, 0) - size)
    pool = tuple(sorted((resource, size) for resource, size in left.items() if size))
    parts = [(c.name, _make_blocks(group, c.memory or pool)) for c in demand.containers]
    return MemoryHoldings(tuple(sorted(parts)), _make_blocks(group, demand.memory))


def _get_mems(group: ObservedCgroup) -> NumaSet:
    value = group.get(Attribute.CPUSET_MEMS)
    return value if isinstance(value, NumaSet) else NumaSet()


def _make_blocks(nodes: NumaSet, amounts: Sequence[tuple[str, int]]) -> Blocks:
    return tuple(Block(nodes, resource, size) for resource, size in sorted(amounts))


def keep_memory(
    manager: MemoryManager, promises: Promises, pod: Pod, demand: PodDemand, before: MemoryHoldings
) -> Promises:
    """Allocate to a pod the memory that it held before, on the same NUMA nodes. Memory is left out if the container's request has changed,
    or if its nodes overlap another group.
    """
    held, charged = _choose_kept(manager, promises, demand, before)
    accounts = memory_accounts(promises)
    for block in charged:
        accounts = charge(accounts, block.nodes, block.resource, block.size_bytes)
    after = with_memory_accounts(promises, accounts)
    return with_pod(after, pod.uid, after.of_pod(pod.uid).having(held))


def _choose_kept(
    manager: MemoryManager, promises: Promises, demand: PodDemand, before: MemoryHoldings
) -> tuple[MemoryHoldings, Blocks]:
    """Return the memory that a pod keeps, and the blocks that count in the accounting."""
    nothing = MemoryHoldings(), ()
    if not manager.static or not demand.is_guaranteed:
        return nothing
    accounts = memory_accounts(promises)
    books = {node.id: {resource for resource, _ in node.tables} for node in accounts}

    def fits(blocks: Blocks) -> bool:
        return all(
            b.nodes
            and all(b.resource in books.get(node, ()) for node in b.nodes)
            and not breaks_group(accounts, b.nodes)
            for b in blocks
        )

    whole, wanted = before.pod_memory, {c.name: c for c in demand.containers}
    if whole is not None:
        parts = tuple((name, blocks) for name, blocks in before.memory if name in wanted and fits(blocks))
        if not whole or not fits(whole) or _list_amounts(whole) != dict(demand.memory or ()) or parts != before.memory:
            return nothing
        return MemoryHoldings(parts, whole), whole
    parts = tuple(
        (name, blocks)
        for name, blocks in before.memory
        if name in wanted and fits(blocks) and _matches_request(wanted[name], _list_amounts(blocks))
    )
    groups = {block.nodes for _, blocks in parts for block in blocks}
    if len(groups) > 1 and any(not a.isdisjoint(b) for a in groups for b in groups if a != b):
        return nothing
    return MemoryHoldings(parts), tuple(block for _, blocks in parts for block in blocks)


def _list_amounts(blocks: Blocks) -> dict[str, int]:
    return {block.resource: block.size_bytes for block in blocks}


def _matches_request(container: ContainerDemand, held: dict[str, int]) -> bool:
    if container.memory is None:
        return False
    wanted = dict(container.memory)
    if container.kind is ContainerKind.INIT:  # containers after an init container may have reused part of its memory
        return all(size <= wanted.get(resource, -1) for resource, size in held.items())
    return bool(held) and held == wanted


def memory_differences(
    manager: MemoryManager, promises: Promises, pod: Pod, demand: PodDemand, before: MemoryHoldings, name: str
) -> Iterator[HoldingChange]:
    """Yield the change of the NUMA nodes of a container's memory, if they changed."""
    old_nodes, new_nodes = before.nodes(name), promises.of_pod(pod.uid).of(MemoryHoldings).nodes(name)
    if old_nodes == new_nodes:
        return
    container = next(one for one in demand.containers if one.name == name)
    lacks = not new_nodes and not demand.is_skipped and bool(container.memory)
    yield HoldingChange(
        "memory nodes",
        str(old_nodes or "any"),
        str(new_nodes or "any"),
        _explain_change(manager, old_nodes, lacks=lacks),
    )


def _explain_change(manager: MemoryManager, old_nodes: NumaSet, *, lacks: bool) -> str:
    if not manager.static:
        return "memoryManagerPolicy is None now"
    gone = old_nodes - NumaSet.from_ids(node.id for node in manager.machine)
    parts = [f"NUMA nodes {gone} are gone"] if gone else []
    if lacks:
        parts.append(f"degraded: no NUMA node has enough free memory for it; {AGAIN}")
    elif not parts:
        parts.append("memory is available for it now" if not old_nodes else "it could not keep its memory")
    return "; ".join(parts)


def list_memory_changes(before: Promises, after: Promises) -> Iterator[MachineChange]:
    """Yield the changes in the total and the reserved memory of each NUMA node, and in the groups of nodes."""
    olds, news = ({node.id: node for node in memory_accounts(promises)} for promises in (before, after))
    for node in sorted(olds.keys() | news.keys()):
        old_tables, new_tables = (dict(nodes[node].tables) if node in nodes else {} for nodes in (olds, news))
        for resource in sorted(old_tables.keys() | new_tables.keys()):
            old, new = old_tables.get(resource), new_tables.get(resource)
            where = f"{resource} of NUMA node {node}"
            if old is None or new is None:
                was, now = (_format_kib(None if table is None else table.total) for table in (old, new))
                yield MachineChange(where, was, now)
                continue
            if old.total != new.total:
                most = min(_MOST_WOBBLE_BYTES, old.total // _WOBBLE_SHARE)
                is_ordinary = resource == MEMORY and abs(new.total - old.total) <= most
                yield MachineChange(where, _format_kib(old.total), _format_kib(new.total), is_ordinary)
            if old.system_reserved != new.system_reserved:
                was, now = (_format_kib(table.system_reserved) for table in (old, new))
                yield MachineChange(f"reserved {where}", was, now)
        if node in olds and node in news and olds[node].cells != news[node].cells:
            yield MachineChange(f"memory group of NUMA node {node}", str(olds[node].cells), str(news[node].cells))


def _format_kib(size: int | None) -> str:
    return "none" if size is None else f"{size // _KIB:,} KiB"
