"""Division of a CPU request among the NUMA nodes of a hint, for allocations in which each node must provide some CPUs (`sameNumaNodes`)."""

from collections.abc import Sequence
from itertools import repeat


def divide_evenly(free: Sequence[int], count: int, size: int) -> tuple[int, ...] | None:
    """Divide `count` CPUs among NUMA nodes, as evenly as their free CPUs allow. Each node provides at least one group of `size` CPUs.

    Args:
        free: number of free CPUs of each node.
        count: the number of CPUs to divide.
        size: the number of CPUs in a group, which is not divided between nodes, such as the CPUs of a core.

    Returns:
        The number of CPUs that each node provides. None means that such a division is impossible.
    """
    groups, remainder = divmod(count, size)
    room = [each // size for each in free]
    if remainder or groups < len(room) or sum(room) < groups or not all(room):
        return None
    shares = [0] * len(room)
    for _ in repeat(None, groups):
        shares[min((x for x in range(len(room)) if shares[x] < room[x]), key=shares.__getitem__)] += 1
    return tuple(share * size for share in shares)
