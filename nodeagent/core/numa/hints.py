"""NUMA hints, and their merge into one hint. The result follows kubelet's rules, but not all combinations are tried.

A hint consists of a set of NUMA nodes, and whether the set is preferred.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa.hint_table import MAX_TABLED_NODES, find_intersections

HintList = tuple[tuple[NumaMask | None, bool], ...]
"""Hints as pairs (mask, preferred), in the given order. A mask of None means any node. An empty list means that the request
can't be met.
"""

_FEW_HINTS = 32
"""Largest number of hints in a list for which all combinations are tried. For longer lists, a table is faster."""
DONT_CARE: HintList = ((None, True),)
UNSATISFIABLE: HintList = ((None, False),)

Comparison = Callable[[int, int], int | None]
"""Function that compares two nodes, and returns the node that the managers prefer. None means that they prefer neither node."""

SetRank = Callable[[NumaMask], int]
"""Function that ranks a set of nodes, the best set lowest. It decides among sets with equally many nodes and equal distances."""


Fitness = tuple[int, int, int, int]
"""Rank of a set of nodes. Its parts are the number of nodes, the sum of their distances, the `SetRank`, and the set's bits."""


class MergeRules(Struct, frozen=True):
    default_mask: NumaMask
    """All NUMA nodes of the machine."""
    single_node: bool
    """Whether the policy is single-numa-node."""
    distances: Mapping[int, Mapping[int, int]] | None = None
    """Distances between nodes, if `prefer-closest-numa-nodes` is on. The distances decide between masks of the same size."""


class Merged(Struct, frozen=True):
    mask: NumaMask | None
    preferred: bool


def masks_by_size(nodes: Sequence[int]) -> tuple[NumaMask, ...]:
    """Return all non-empty sets of these nodes, sorted by size, and lexicographically within a size."""
    bits = [1 << node for node in nodes]
    return tuple(NumaMask(sum(chosen)) for size in range(1, len(bits) + 1) for chosen in combinations(bits, size))


def merge(
    rules: MergeRules, lists: Sequence[HintList], compare: Comparison | None = None, rank_set: SetRank | None = None
) -> Merged:
    """Merge one hint from each list into the best hint, as kubelet's topology manager does. The result doesn't depend on the order of
    equally good hints.

    Args:
        rules: the rules of the policy.
        lists: one list per resource. A missing list counts as `DONT_CARE`, and an empty list as `UNSATISFIABLE`.
        compare: function that returns which of two single nodes the managers prefer. It is called only under policy single-numa-node.
        rank_set: function that ranks otherwise equally good sets of nodes. None means that the set with the lower node IDs is chosen.
    """
    if rules.single_node:
        lists = [tuple(h for h in hints if h[1] and (h[0] is None or h[0].bit_count() == 1)) for hints in lists]
    preferred = _list_preferred_masks(rules, lists)
    if preferred:
        best = (
            min(preferred, key=fitness(rules, rank_set)) if compare is None else _choose_most_wanted(preferred, compare)
        )
        # Under single-numa-node, a mask of the whole machine (or of its only node) doesn't restrict the resources.
        return Merged(None if rules.single_node and best == rules.default_mask else best, preferred=True)
    if rules.single_node:
        # Two different single nodes have no node in common.
        return Merged(None, preferred=False)
    masks = _list_intersections(rules, lists)
    if not masks:
        return Merged(rules.default_mask, preferred=False)
    return Merged(min(masks, key=non_preferred_rank(rules, wanted_count(lists), rank_set)), preferred=False)


def _list_preferred_masks(rules: MergeRules, lists: Sequence[HintList]) -> set[NumaMask]:
    """Return the masks that are preferred hints in all lists."""
    common: set[NumaMask] | None = None
    anywhere: set[NumaMask] = set()
    for hints in lists:
        masks = {mask for mask, preferred in hints if preferred}
        if None in masks:
            anywhere |= {mask for mask in masks if mask is not None}
        else:
            mine = {mask for mask in masks if mask is not None}
            common = mine if common is None else common & mine
    if common is None:
        common = anywhere | {rules.default_mask}
    return {NumaMask(mask) for mask in (m & rules.default_mask for m in common) if mask}


def _list_intersections(rules: MergeRules, lists: Sequence[HintList]) -> set[NumaMask]:
    """Return all possible intersections of one hint from each list."""
    nodes = tuple(node for node in range(rules.default_mask.bit_length()) if rules.default_mask >> node & 1)
    found = {rules.default_mask}
    by_list = [{rules.default_mask if mask is None else mask for mask, _ in hints} for hints in lists]
    if len(nodes) <= MAX_TABLED_NODES and max(map(len, by_list), default=0) > _FEW_HINTS:
        return find_intersections(by_list, nodes)
    for masks in by_list:
        found = {NumaMask(mask) for mask in {a & b for a in found for b in masks} if mask}
    return found


def wanted_count(lists: Iterable[HintList]) -> int:
    """Return the number of nodes that the merged hint should have. It is the largest of the lists' smallest hint sizes, so every list
    has a hint that fits.
    """
    narrowest = [min((m.bit_count() for m, _ in hints if m is not None), default=0) for hints in lists]
    return max(narrowest, default=0)


def non_preferred_rank(
    rules: MergeRules, wanted: int, rank_set: SetRank | None = None
) -> Callable[[NumaMask], tuple[int, int, Fitness]]:
    """Return a function that ranks masks. Masks of the wanted size are best, then smaller masks (the largest first), then larger masks."""
    fit = fitness(rules, rank_set)

    def rank(mask: NumaMask) -> tuple[int, int, Fitness]:
        size = mask.bit_count()
        if size == wanted:
            return 0, 0, fit(mask)
        return (1, -size, fit(mask)) if size < wanted else (2, 0, fit(mask))

    return rank


def fitness(rules: MergeRules, rank_set: SetRank | None = None) -> Callable[[NumaMask], Fitness]:
    """Return a function that ranks masks, the best mask lowest. Masks are compared by the number of nodes, by distance if distances
    matter, by `rank_set`, and by node IDs.
    """
    distances = None if rules.single_node else rules.distances

    def fit(mask: NumaMask) -> Fitness:
        rank = 0 if rank_set is None else rank_set(mask)
        if distances is None:
            return mask.bit_count(), 0, rank, mask
        nodes = [node for node in distances if mask >> node & 1]
        # Masks of the same size are compared, so comparing sums of distances is the same as comparing averages.
        return len(nodes), sum(distances[a][b] for a in nodes for b in nodes), rank, mask

    return fit


def _choose_most_wanted(masks: Iterable[NumaMask], compare: Comparison) -> NumaMask:
    """Choose one of several single nodes. They are compared one after the other in ascending order. This order matters, because
    preferences between two nodes need not be transitive.
    """
    best: NumaMask | None = None
    for mask in sorted(masks, key=lambda mask: (mask.bit_count(), mask)):
        if best is None:
            best = mask
        elif best.bit_count() == mask.bit_count() == 1:
            wanted = compare(best.bit_length() - 1, mask.bit_length() - 1)
            best = best if wanted is None else NumaMask(1 << wanted)
    assert best is not None
    return best
