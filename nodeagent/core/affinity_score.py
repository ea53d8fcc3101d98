"""Which of two NUMA nodes a pod should rather go to: the fuller one (prefer-most-allocated-numa-node, KEP-6007).

Each manager compares the share it has given away, in whole percent; it has no opinion on equal shares. If they disagree, nobody
has one.
"""

from nodeagent.core.cpu_manager import CpuManager
from nodeagent.core.idset import NumaSet
from nodeagent.core.memory_manager import MemoryManager
from nodeagent.core.promises import Promises


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
    alone = NumaSet.of(node)
    assigned = sum(
        block.size_bytes
        for _, pod in promises.pods
        for _, blocks in pod.memory
        for block in blocks
        if block.resource == "memory" and block.nodes == alone
    )
    accounting = next((n for n in promises.memory if n.id == node), None)
    table = None if accounting is None else accounting.table("memory")
    return _percent(assigned, 0 if table is None else table.allocatable)


def _percent(part: int, whole: int) -> int:
    return part * 100 // whole if whole else 0
