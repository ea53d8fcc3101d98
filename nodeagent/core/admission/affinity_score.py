"""Which of two NUMA nodes a pod should rather go to: the fuller one (prefer-most-allocated-numa-node, KEP-6007).

Each manager compares the share it has given away, in whole percent; it has no opinion on equal shares. If they disagree, nobody
has one.
"""

from collections.abc import Mapping

from nodeagent.core.cpu.manager import CpuManager
from nodeagent.core.memory.manager import MemoryManager
from nodeagent.core.model.pod import MEMORY
from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises, Promises

BytesByNode = Mapping[int, int]
"""Regular memory of blocks that lie on one NUMA node alone, by that node."""


def preferred_of_two(cpu: CpuManager, memory: MemoryManager, promises: Promises, a: int, b: int) -> int | None:
    """Name the node that the managers would rather use; None: they are undecided."""
    wishes = set()
    if cpu.static:
        wishes.add(_higher(a, b, _cpu_share(cpu, promises, a), _cpu_share(cpu, promises, b)))
    if memory.static:
        wishes.add(_higher(a, b, _memory_share(promises, a), _memory_share(promises, b)))
    wishes.discard(None)
    return wishes.pop() if len(wishes) == 1 else None


def _higher(a: int, b: int, of_a: int, of_b: int) -> int | None:
    if of_a == of_b:
        return None
    return a if of_a > of_b else b


def _cpu_share(cpu: CpuManager, promises: Promises, node: int) -> int:
    cpus = cpu.layout.cpus_of_nodes(1 << node)
    return _percent((promises.exclusive().bits & cpus).bit_count(), (cpus & ~cpu.reserved.bits).bit_count())


def _memory_share(promises: Promises, node: int) -> int:
    """Regular memory in containers' blocks on this node alone, of what can be given there."""
    assigned = promises.pods.fold(_ALONE).get(node, 0)
    accounting = next((n for n in promises.memory if n.id == node), None)
    table = None if accounting is None else accounting.table("memory")
    return _percent(assigned, 0 if table is None else table.allocatable)


def _alone(_uid: str, pod: PodPromises) -> BytesByNode:
    found: dict[int, int] = {}
    for _, blocks in pod.memory:
        for block in blocks:
            if block.resource == MEMORY and len(block.nodes) == 1:
                (node,) = block.nodes
                found[node] = found.get(node, 0) + block.size_bytes
    return found


def _summed(a: BytesByNode, b: BytesByNode) -> BytesByNode:
    return {node: a.get(node, 0) + b.get(node, 0) for node in a.keys() | b.keys()} if a and b else a or b


_ALONE: Fold[PodPromises, BytesByNode] = Fold({}, _alone, _summed)


def _percent(part: int, whole: int) -> int:
    return part * 100 // whole if whole else 0
