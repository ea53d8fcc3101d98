"""The memory manager's policies None and Static, which allocate memory on NUMA nodes and release it.

A decision takes promises and returns new promises, with the changes of metrics. pods.py handles pods with pod-level resources.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.metrics.manager_metrics import (
    MEMORY_ERRORS,
    MEMORY_REQUESTS,
    MetricDeltas,
    allocation_errors,
    allocations,
    assignments,
    plus,
)
from nodeagent.core.model.config import Placement
from nodeagent.core.model.demand import Amounts, ContainerDemand, PodDemand
from nodeagent.core.model.errata import Erratum, list_reproduced
from nodeagent.core.model.holdings import put_item
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.pod import ContainerKind, Pod
from nodeagent.core.model.promises import Hint, PodPromises, Promises, with_pod
from nodeagent.core.model.refusals import StartRefused, wrap_unexpected
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.memory.accounting import (
    NodeAccounts,
    breaks_group,
    free_of,
    initial_machine,
    release,
    take,
)
from nodeagent.core.resources.memory.groups import NodeGroups, best_group
from nodeagent.core.resources.memory.holdings import (
    Block,
    Blocks,
    MemoryBooks,
    MemoryHoldings,
    MemoryReuse,
    memory_accounts,
    with_memory_accounts,
)
from nodeagent.core.resources.memory.reservation import invalid_entries, reserved_by_node
from nodeagent.core.resources.resource import Allocation

NOT_REPRESENTABLE = "[memorymanager] failed to represent quantity as int64"


class MemoryManager(Struct, frozen=True):
    static: bool
    machine: NodeAccounts
    """Accounting of the machine when no memory is allocated."""
    groups: NodeGroups
    keeps_one_node: bool
    """Whether the topology manager's policy is restricted or single-numa-node. A hint with a single node is then never extended by more
    nodes, not even to avoid overlapping groups.
    """
    quirks: frozenset[Erratum]


def build_memory_manager(topology: Topology, placement: Placement) -> MemoryManager | tuple[StartRefused, ...]:
    """Build the memory manager. If the configuration is invalid or doesn't suit the machine, return the errors, worded as by kubelet."""
    unknown = judge_memory_policy(placement)
    if unknown:
        return unknown
    quirks = list_reproduced(placement.errata)
    static = placement.memory_manager_policy == "Static"
    machine: NodeAccounts = ()
    if static:
        reserved = reserved_by_node(topology, placement)
        if isinstance(reserved, tuple):
            return reserved
        machine = initial_machine(topology, reserved)
        absurd = tuple(
            StartRefused(
                f"[memorymanager] NUMA node {node.id} has {table.total} bytes of {resource}: less than is reserved and set aside "
                "as huge pages",
                "reservedMemory",
            )
            for node in machine
            for resource, table in node.tables
            if table.allocatable > table.total
        )
        if absurd and Erratum.ABSURD_AMOUNTS not in quirks:
            return absurd
    return MemoryManager(
        static=static,
        machine=machine,
        groups=NodeGroups.of(machine),
        keeps_one_node=placement.topology_manager_policy in ("restricted", "single-numa-node"),
        quirks=quirks,
    )


def judge_memory_policy(placement: Placement) -> tuple[StartRefused, ...]:
    """Return the error if the name of the policy is unknown."""
    if placement.memory_manager_policy in {"None", "Static"}:
        return ()
    return (StartRefused(f'unknown policy: "{placement.memory_manager_policy}"', "memoryManagerPolicy"),)


def judge_memory_configuration(placement: Placement) -> tuple[StartRefused, ...]:
    """Return the errors in the policy's name and in `reservedMemory` that can be found without a machine."""
    invalid = invalid_entries(placement) if placement.memory_manager_policy == "Static" else None
    return (*judge_memory_policy(placement), *(() if invalid is None else (invalid,)))


def allocate_container(
    manager: MemoryManager, promises: Promises, pod: PodDemand, container: ContainerDemand
) -> Allocation:
    """Allocate a container's memory on a group of nodes, which is derived from the container's stored hint."""
    if not manager.static or not pod.is_guaranteed or pod.is_skipped:
        return Allocation(promises)
    if container.memory == () and Erratum.MEMORY_REFUSES_SHARED_CONTAINER not in manager.quirks:
        return Allocation(promises)
    requests = plus(MEMORY_REQUESTS)
    held = promises.of_pod(pod.uid)
    blocks = held.of(MemoryHoldings).blocks(container.name)
    if blocks is not None:
        return Allocation(_update_reuse(promises, pod.uid, container.kind, blocks), (requests,))
    if container.memory is None:
        return _refuse(promises, (requests,), NOT_REPRESENTABLE)
    machine = memory_accounts(promises)
    spread = container.spread if _has_room(machine, container) else ()
    nodes: NumaSet | str = NumaSet.from_ids(node for node, _ in spread)
    if not nodes:
        hint = promises.hint(pod.uid, container.name)
        nodes = choose_nodes(manager, promises, pod.uid, container.memory, hint)
    if isinstance(nodes, str):
        return _refuse(promises, (requests,), nodes)
    blocks = tuple(Block(nodes, resource, size) for resource, size in container.memory)
    taken_over: list[Block] = []
    for resource, size in container.memory:
        taken_over.append(Block(nodes, resource, min(size, reusable_bytes(promises, pod.uid, nodes, resource))))
        machine = take(machine, nodes, resource, size - taken_over[-1].size_bytes, spread)
    own = held.of(MemoryHoldings)
    memory = _deduct_reuse(put_item(own.memory, container.name, blocks), pod, container.name, taken_over)
    after = with_pod(promises, pod.uid, held.having(replace(own, memory=memory)))
    after = _update_reuse(with_memory_accounts(after, machine), pod.uid, container.kind, blocks)
    deltas = (requests, *(allocations("memory", "node") for _ in blocks), assignments("memory", "node_exclusive"))
    return Allocation(after, deltas)


def _has_room(machine: NodeAccounts, container: ContainerDemand) -> bool:
    """Return whether the container's memory can be spread over the nodes of `container.spread`. These nodes must have enough free memory
    together, and must not overlap another group.
    """
    nodes = NumaSet.from_ids(node for node, _ in container.spread)
    is_free = all(free_of(machine, nodes, resource) >= size for resource, size in container.memory or ())
    return bool(nodes) and is_free and not breaks_group(machine, nodes)


def choose_nodes(manager: MemoryManager, promises: Promises, uid: str, amounts: Amounts, hint: Hint) -> NumaSet | str:
    """Choose the group of nodes that provides the amounts, starting from the hint. If no group is suitable, return kubelet's error text."""
    machine = memory_accounts(promises)
    for resource, size in amounts:
        if size and all(node.table(resource) is None for node in machine):
            # kubelet itself panics in this case
            return f"[memorymanager] no NUMA node has {resource}"

    # kubelet only uses the hints of regular memory. All resources have the same hints, so this matters only if the container requests no
    # regular memory.
    only_memory = Erratum.ABSURD_AMOUNTS in manager.quirks
    has_none = only_memory and not any(resource == "memory" for resource, _ in amounts)
    nodes, preferred = hint.mask, hint.preferred
    if nodes is None:
        default = None if has_none else best_group(manager.groups, promises, uid, amounts)
        if default is None:
            return (
                "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
            )
        nodes, default_preferred = default
        if preferred and not default_preferred:
            return "[memorymanager] failed to find the default preferred hint"
        preferred = default_preferred
    broken_single = len(nodes) == 1 and breaks_group(machine, nodes) and Erratum.GROUP_RULE_BROKEN not in manager.quirks
    too_small = any(free_of(machine, nodes, resource) < size for resource, size in amounts)
    if too_small or (broken_single and not manager.keeps_one_node):
        wider = None if has_none else best_group(manager.groups, promises, uid, amounts, nodes)
        if wider is None:
            if broken_single:
                return "[memorymanager] preferred hint violates NUMA node allocation"
            return "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
        if preferred and not wider[1]:
            return "[memorymanager] failed to find the extended preferred hint"
        nodes, broken_single = wider[0], False
    if broken_single or (len(nodes) > 1 and breaks_group(machine, nodes)):
        return "[memorymanager] preferred hint violates NUMA node allocation"
    return nodes


def _refuse(promises: Promises, deltas: MetricDeltas, error: str) -> Allocation:
    return Allocation(
        promises, (*deltas, plus(MEMORY_ERRORS), allocation_errors("memory", "node")), wrap_unexpected(error)
    )


def reusable_bytes(promises: Promises, uid: str, nodes: NumaSet, resource: str) -> int:
    """Return how many bytes of the pod's init containers its next container may reuse on exactly these nodes."""
    reuse = promises.of(MemoryBooks).reuse
    return reuse.amount(nodes, resource) if reuse is not None and reuse.pod_uid == uid else 0


def _update_reuse(promises: Promises, uid: str, kind: ContainerKind, blocks: Blocks) -> Promises:
    reuse = promises.of(MemoryBooks).reuse
    amounts = dict(reuse.amounts) if reuse is not None and reuse.pod_uid == uid else {}
    for block in blocks:
        key = (block.nodes, block.resource)
        so_far = amounts.get(key, 0)
        if kind is ContainerKind.INIT:
            amounts[key] = max(so_far, block.size_bytes)
        elif so_far:
            amounts[key] = so_far - min(so_far, block.size_bytes)
    left = tuple(sorted(((k, v) for k, v in amounts.items() if v), key=lambda item: (item[0][0].bits, item[0][1])))
    after, books = MemoryReuse(uid, left) if left else None, promises.of(MemoryBooks)
    return promises if after == books.reuse else promises.having(replace(books, reuse=after))


def _deduct_reuse(
    memory: tuple[tuple[str, Blocks], ...], pod: PodDemand, name: str, blocks: Iterable[Block]
) -> tuple[tuple[str, Blocks], ...]:
    """Subtract the bytes that a container reuses from the blocks of the init containers that held them. Otherwise these bytes would count
    twice when the pod's blocks are summed up.
    """
    lenders = []
    for container in pod.containers:
        if container.name == name or container.kind is ContainerKind.APP:
            break
        if container.kind is ContainerKind.INIT:
            lenders.append(container.name)
    if not lenders:
        return memory
    held = dict(memory)
    for block in blocks:
        missing_bytes = block.size_bytes
        for lender in lenders:
            if missing_bytes == 0:
                break
            changed = []
            for lent_block in held.get(lender, ()):
                moved = (
                    min(lent_block.size_bytes, missing_bytes)
                    if (lent_block.resource, lent_block.nodes) == (block.resource, block.nodes)
                    else 0
                )
                missing_bytes -= moved
                changed.append(replace(lent_block, size_bytes=lent_block.size_bytes - moved) if moved else lent_block)
            if lender in held:
                held[lender] = tuple(changed)
    return tuple(sorted(held.items()))


def release_started(manager: MemoryManager, promises: Promises, pod: Pod, name: str) -> Promises:
    """Release the memory of the pod's init containers before container `name`. They have ended, because this container is starting."""
    for container in pod.containers:
        if container.name == name:
            break
        if container.kind is ContainerKind.INIT:
            promises = release_container(manager, promises, pod.uid, container.name)
    return promises


def release_container(manager: MemoryManager, promises: Promises, uid: str, name: str) -> Promises:
    """Release one container's memory. With the pod's last container, also release the memory of the pod as a whole."""
    if not manager.static:
        return promises
    pod = promises.of_pod(uid)
    held = pod.of(MemoryHoldings)
    blocks, left = held.blocks(name), held.without(name)
    if left.pod_memory is not None:
        if left.memory:
            return with_pod(promises, uid, pod.having(left))
        blocks, left = left.pod_memory, MemoryHoldings()
    elif blocks is None:
        return promises
    after = with_pod(promises, uid, pod.having(left))
    return with_memory_accounts(after, release(memory_accounts(promises), blocks))


def release_pod_blocks(manager: MemoryManager, promises: Promises, uid: str) -> Promises:
    """Release the memory of a pod as a whole, if its containers hold none. This function isn't called while Erratum.POD_ENTRY_LEAKS is
    reproduced, because kubelet never releases this memory.
    """
    pod = promises.of_pod(uid)
    held = pod.of(MemoryHoldings)
    if not manager.static or held.pod_memory is None or held.memory:
        return promises
    after = with_pod(promises, uid, pod.having(MemoryHoldings()))
    return with_memory_accounts(after, release(memory_accounts(promises), held.pod_memory))


def regenerated(pod: PodPromises, name: str, amounts: Amounts) -> tuple[tuple[str, NumaSet], ...] | None:
    """Return, by resource, the NUMA nodes of the memory allocated to a container. The container's hints are derived from these nodes. None
    means that the allocated amounts differ from the requested ones.
    """
    blocks = pod.of(MemoryHoldings).blocks(name) or ()
    wanted = dict(amounts)
    if len(blocks) != len(wanted) or any(wanted.get(b.resource) != b.size_bytes for b in blocks):
        return None
    return tuple((b.resource, b.nodes) for b in blocks)
