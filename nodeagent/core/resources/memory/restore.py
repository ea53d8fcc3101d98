"""Conversion of kubelet's memory_manager_state into promises. Content that the Static policy doesn't accept is refused with kubelet's
messages.
"""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from nodeagent.core.model.errata import Erratum
from nodeagent.core.model.idset import NumaSet
from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import NOTHING, PodPromises, Promises
from nodeagent.core.model.records import Unreadable
from nodeagent.core.model.refusals import StartRefused
from nodeagent.core.resources.memory.accounting import NodeAccounts, charge, take
from nodeagent.core.resources.memory.holdings import (
    Block,
    MemoryHoldings,
    MemoryNode,
    memory_accounts,
    with_memory_accounts,
)
from nodeagent.core.resources.memory.manager import MemoryManager
from nodeagent.core.resources.memory.records import MemoryRecord

_Charges = Mapping[tuple[NumaSet, str], tuple[int, int]]
"""Total bytes and number of blocks, by group of NUMA nodes and resource."""
_FILE = "memory_manager_state"
_PATH = f"/var/lib/kubelet/{_FILE}"


def restore_memory(
    manager: MemoryManager, promises: Promises, record: MemoryRecord | Unreadable | None
) -> Promises | StartRefused:
    """Check the content of kubelet's file, and add its memory to the promises. Return kubelet's error if the content isn't accepted.

    Args:
        manager: the manager with the present configuration.
        promises: the promises restored so far, without memory.
        record: the content of the file. None means that the file doesn't exist.
    """
    if record is not None:
        loaded = _parse_record(manager, promises, record)
        if isinstance(loaded, StartRefused):
            return StartRefused(
                f"could not restore state from checkpoint: {loaded.message}, please drain this node and delete the memory manager "
                f'checkpoint file "{_PATH}" before restarting Kubelet',
                _FILE,
            )
        promises = loaded
    return validate_memory(manager, promises)


def _parse_record(
    manager: MemoryManager, promises: Promises, record: MemoryRecord | Unreadable
) -> Promises | StartRefused:
    if isinstance(record, Unreadable):
        return StartRefused(record.message, _FILE)
    policy = "Static" if manager.static else "None"
    if record.policy_name != policy:
        return StartRefused(
            f'[memorymanager] configured policy "{policy}" differs from state checkpoint policy "{record.policy_name}"',
            _FILE,
        )
    pods = promises.pods
    for uid, containers in record.entries:
        held = pods.get(uid) or NOTHING
        pods = pods.put(uid, held.having(replace(held.of(MemoryHoldings), memory=containers)))
    for uid, blocks in record.pod_entries:
        held = pods.get(uid) or NOTHING
        pods = pods.put(uid, held.having(replace(held.of(MemoryHoldings), pod_memory=blocks)))
    return with_memory_accounts(replace(promises, pods=pods), record.machine)


def validate_memory(manager: MemoryManager, promises: Promises) -> Promises | StartRefused:
    """Check stored promises against the present machine and configuration. If the machine's memory has changed, compute the accounting from
    the allocated blocks. Return kubelet's error if the promises aren't accepted.
    """
    if not manager.static:
        return promises
    if not memory_accounts(promises):
        if any(pod.of(MemoryHoldings).memory for _, pod in promises.pods):
            return StartRefused("[memorymanager] machine state can not be empty when it has memory assignments", _FILE)
        return with_memory_accounts(promises, manager.machine)
    if Erratum.TOTALS_MUST_MATCH not in manager.quirks:
        return (
            promises
            if books_differ(manager, promises) is None
            else with_memory_accounts(promises, _charge_all_blocks(manager, promises))
        )
    difference = books_differ(manager, promises)
    return promises if difference is None else StartRefused(difference, _FILE)


def books_differ(manager: MemoryManager, promises: Promises) -> str | None:
    """Describe, in kubelet's words, how the stored accounting differs from the accounting computed from the allocated blocks and this
    machine. None means that they don't differ.
    """
    expected = _rebuild_accounts(manager, promises)
    if isinstance(expected, str):
        return expected
    if _have_differences(memory_accounts(promises), expected):
        return "[memorymanager] the expected machine state is different from the real one"
    return None


def _rebuild_accounts(manager: MemoryManager, promises: Promises) -> NodeAccounts | str:
    """Compute the accounting from the allocated blocks and this machine. Return an error text if kubelet would refuse the blocks."""
    if Erratum.TOTALS_MUST_MATCH not in manager.quirks:
        return _charge_all_blocks(manager, promises)
    machine = manager.machine
    known = NumaSet.from_ids(node.id for node in machine)
    for uid, name, block in list_charged_blocks(manager, promises):
        if not block.nodes <= known:
            return f"[memorymanager] (pod: {uid}, container: {name}) the memory assignment uses the NUMA that does not exist"
        if any(node.id in block.nodes and node.table(block.resource) is None for node in machine):
            return f"[memorymanager] (pod: {uid}, container: {name}) the memory assignment uses memory resource that does not exist"
        machine = take(machine, block.nodes, block.resource, block.size_bytes)
    return machine


def _charge_all_blocks(manager: MemoryManager, promises: Promises) -> NodeAccounts:
    machine = manager.machine
    for (nodes, resource), (size, count) in promises.pods.fold(_CHARGES).items():
        machine = charge(machine, nodes, resource, size, count)
    return machine


def _sum_charges(_uid: str, pod: PodPromises) -> _Charges:
    held = pod.of(MemoryHoldings)
    of_containers = tuple(block for _, blocks in held.memory for block in blocks)
    charges: _Charges = {}
    for block in of_containers if held.pod_memory is None else held.pod_memory:
        charges = _add_charges(charges, {(block.nodes, block.resource): (block.size_bytes, 1)})
    return charges


def _add_charges(a: _Charges, b: _Charges) -> _Charges:
    total = dict(a)
    for key, (size, count) in b.items():
        before_size, before_count = total.get(key, (0, 0))
        total[key] = (before_size + size, before_count + count)
    return total


_CHARGES: Fold[PodPromises, _Charges] = Fold({}, _sum_charges, _add_charges)


def list_charged_blocks(manager: MemoryManager, promises: Promises) -> Iterator[tuple[str, str, Block]]:
    """Yield the blocks that count in the accounting, as (pod UID, container name, block). For a pod with pod-level memory, these are its
    pod-level blocks, with an empty container name. For other pods, they are the containers' blocks.
    """
    for uid, pod in promises.pods:
        held = pod.of(MemoryHoldings)
        by_pod = held.pod_memory is not None
        # kubelet iterates over the entries of containers, so it skips the entry of a pod whose containers have no entries
        # (Erratum.POD_ENTRY_LEAKS).
        if by_pod and (held.memory or Erratum.POD_ENTRY_LEAKS not in manager.quirks):
            yield from ((uid, "", block) for block in held.pod_memory or ())
        elif not by_pod:
            yield from ((uid, name, block) for name, blocks in held.memory for block in blocks)


def _have_differences(stored: NodeAccounts, expected: NodeAccounts) -> bool:
    if len(stored) != len(expected):
        return True
    real = {node.id: node for node in stored}
    wanted = {node.id: node for node in expected}
    return any(_node_differs(real, wanted, node_id) for node_id in wanted)


def _node_differs(real: dict[int, MemoryNode], wanted: dict[int, MemoryNode], node_id: int) -> bool:
    one, other = real.get(node_id), wanted[node_id]
    if one is None or one.assignments != other.assignments or one.cells != other.cells:
        return True
    if len(one.tables) != len(other.tables):
        return True
    for resource, table in other.tables:
        own_table = one.table(resource)
        if own_table is None:
            return True
        if (own_table.total, own_table.system_reserved, own_table.allocatable) != (
            table.total,
            table.system_reserved,
            table.allocatable,
        ):
            return True
        # The order of releases decides which node of a group has the free bytes. So only sums over the group are compared.
        if _sum_group(real, other.cells, resource) != _sum_group(wanted, other.cells, resource):
            return True
    return False


def _sum_group(nodes: dict[int, MemoryNode], cells: NumaSet, resource: str) -> tuple[int, int]:
    tables = [t for node_id in cells if node_id in nodes and (t := nodes[node_id].table(resource)) is not None]
    return sum(t.free for t in tables), sum(t.reserved for t in tables)
