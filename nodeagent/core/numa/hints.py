"""NUMA hints, and their merge into one hint. The merge has the same result as kubelet's, without trying all combinations.

A hint is a set of NUMA nodes, with a flag that says whether the set is preferred.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations

from msgspec import Struct

from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa.hint_table import MAX_TABLED_NODES, find_intersections

HintList = tuple[tuple[NumaMask | None, bool], ...]
"""List of hints as pairs (mask, preferred), in the resource's order. The mask None means any node. An empty list means that no nodes can
provide the request.
"""

_FEW_HINTS = 32
"""Largest length of a list for which all combinations of hints are tried. For longer lists, tables (hint_table.py) are faster."""
DONT_CARE: HintList = ((None, True),)
UNSATISFIABLE: HintList = ((None, False),)

Comparison = Callable[[int, int], int | None]
"""Function that returns which of two nodes the resources prefer. None means neither."""

SetRank = Callable[[NumaMask], int]
"""Function that ranks sets of nodes, where the lowest rank is best. It is used to choose among sets with equally many nodes and equal
distances.
"""


Fitness = tuple[int, int, int, int]
"""Rank of a set of nodes: the number of nodes, the sum of their distances, the `SetRank`, and the mask. The lowest rank is best."""


class MergeRules(Struct, frozen=True):
    default_mask: NumaMask
    """All NUMA nodes of the machine."""
    single_node: bool
    """Whether the policy is single-numa-node."""
    distances: Mapping[int, Mapping[int, int]] | None = None
    """Distances between nodes, if `prefer-closest-numa-nodes` is set. Of masks with equally many nodes, the one with closer nodes is
    better.
    """


class Merged(Struct, frozen=True):
    mask: NumaMask | None
    preferred: bool


def masks_by_size(nodes: Sequence[int]) -> tuple[NumaMask, ...]:
    """Return all non-empty sets of these nodes, sorted by size, then lexicographically."""
    bits = [1 << node for node in nodes]
    return tuple(NumaMask(sum(chosen)) for size in range(1, len(bits) + 1) for chosen in combinations(bits, size))


def merge(
    rules: MergeRules, lists: Sequence[HintList], compare: Comparison | None = None, rank_set: SetRank | None = None
) -> Merged:
    """Merge one hint from each list into the best hint, as kubelet's topology manager does. The order of hints within a list doesn't
    matter.

    Args:
        rules: the rules of the policy.
        lists: the hints of each resource. A resource without preferences has the list `DONT_CARE`. If no nodes can provide the request, its
            list is `UNSATISFIABLE`.
        compare: function that returns which of two single nodes the resources prefer. It may be given only under policy single-numa-node.
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
    """Return the masks that are preferred hints in all lists. A list that accepts any node doesn't restrict the masks."""
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
    """Return all intersections of one hint from each list."""
    nodes = tuple(node for node in range(rules.default_mask.bit_length()) if rules.default_mask >> node & 1)
    found = {rules.default_mask}
    by_list = [{rules.default_mask if mask is None else mask for mask, _ in hints} for hints in lists]
    if len(nodes) <= MAX_TABLED_NODES and max(map(len, by_list), default=0) > _FEW_HINTS:
        return find_intersections(by_list, nodes)
    for masks in by_list:
        found = {NumaMask(mask) for mask in {a & b for a in found for b in masks} if mask}
    return found


def wanted_count(lists: Iterable[HintList]) -> int:
    """Return the number of nodes that the merged hint should have. It is determined by the resource whose smallest hint has the most nodes,
    because fewer nodes would be too few for this resource.
    """
    narrowest = [min((m.bit_count() for m, _ in hints if m is not None), default=0) for hints in lists]
    return max(narrowest, default=0)


def non_preferred_rank(
    rules: MergeRules, wanted: int, rank_set: SetRank | None = None
) -> Callable[[NumaMask], tuple[int, int, Fitness]]:
    """Return a function that ranks masks, where the lowest rank is best. Masks of the wanted size come first, then smaller masks from the
    largest down, then larger masks.
    """
    fit = fitness(rules, rank_set)

    def rank(mask: NumaMask) -> tuple[int, int, Fitness]:
        size = mask.bit_count()
        if size == wanted:
            return 0, 0, fit(mask)
        return (1, -size, fit(mask)) if size < wanted else (2, 0, fit(mask))

    return rank


def fitness(rules: MergeRules, rank_set: SetRank | None = None) -> Callable[[NumaMask], Fitness]:
    """Return a function that ranks masks, where the lowest rank is best. Masks are compared by their number of nodes, then by distances (if
    these matter), then by `rank_set`, then by node IDs.
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
    """Choose the single node that wins when all nodes are compared in pairs, in ascending order. The order matters, because A may be
    preferred to B, B to C, and C to A.
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
