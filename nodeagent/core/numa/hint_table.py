"""Computation of hints with tables that have an entry for each set of NUMA nodes, on machines with up to 12 nodes.

The sum of a value over all subsets or supersets of each set takes one addition per node and set (zeta transform). Both the listing of hints
and the merge of any number of lists can be expressed by such sums, which take milliseconds. It would take minutes to combine each hint with
each other hint. In this module, a set of nodes is given by its index, a number whose bit i stands for the i-th node of the machine.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from nodeagent.core.model.idset import NumaMask

MAX_TABLED_NODES = 12
"""Largest number of NUMA nodes for which tables are used. A table for 12 nodes has 4,096 entries."""


@lru_cache(maxsize=32)
def order_sets(nodes: tuple[int, ...]) -> tuple[tuple[int, NumaMask], ...]:
    """Return the index and the mask of each non-empty set of nodes, in kubelet's order: sorted by size, then lexicographically."""
    indices = sorted(
        range(1, 1 << len(nodes)),
        key=lambda index: (index.bit_count(), [i for i in range(len(nodes)) if index >> i & 1]),
    )
    return tuple(
        (index, NumaMask(sum(1 << node for i, node in enumerate(nodes) if index >> i & 1))) for index in indices
    )


def index_of(mask: int, nodes: Sequence[int]) -> int:
    """Return the index of the set of nodes in a mask. Nodes that the machine doesn't have are ignored."""
    return sum(1 << i for i, node in enumerate(nodes) if mask >> node & 1)


def count_near(masks: Iterable[int], nodes: Sequence[int]) -> list[int]:
    """For each set of nodes, count the masks that share a node with the set."""
    size = 1 << len(nodes)
    away = [0] * size
    total = 0
    for mask in masks:
        away[index_of(mask, nodes)] += 1
        total += 1
    for node in range(len(nodes)):
        bit = 1 << node
        for index in range(size):
            if index & bit:
                away[index] += away[index ^ bit]
    # A mask has no node in common with a set if it is a subset of the set's complement.
    return [total - count for count in reversed(away)]


def find_intersections(lists: Iterable[Iterable[NumaMask]], nodes: Sequence[int]) -> set[NumaMask]:
    """Return all non-empty intersections of one mask from each list, limited to the machine's nodes."""
    size = 1 << len(nodes)
    is_dense = tuple(nodes) == tuple(range(len(nodes)))
    products = [1] * size
    for masks in lists:
        supersets = [0] * size
        for mask in masks:
            supersets[mask & size - 1 if is_dense else index_of(mask, nodes)] += 1
        for node in range(len(nodes)):
            bit = 1 << node
            for index in range(size):
                if not index & bit:
                    supersets[index] += supersets[index | bit]
        products = [product * count for product, count in zip(products, supersets, strict=True)]
    for node in range(len(nodes)):
        bit = 1 << node
        for index in range(size):
            if not index & bit:
                products[index] -= products[index | bit]
    return {mask for index, mask in order_sets(tuple(nodes)) if products[index]}
