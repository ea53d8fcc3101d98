"""Choice between sets of NUMA nodes by the share that is already allocated, in the two versions of KEP-6007.

`prefer-most-allocated-numa-node` is the first version. Each manager votes for one of two nodes: the one of which a larger percentage is
allocated. If the percentages are equal, the manager abstains. If managers disagree, there is no preference.

`numa-allocation-strategy` is the present version (kubernetes/enhancements 6332). Each resource that gives hints scores a set of nodes from
1 to 100. Among sets that are otherwise equally good, the weighted mean of the scores decides.
"""

from collections.abc import Iterable

from nodeagent.core.model.idset import NumaMask
from nodeagent.core.model.promises import Promises
from nodeagent.core.numa.hint_family import HintFamily
from nodeagent.core.numa.hints import SetRank
from nodeagent.core.numa.topology_manager import Strategy, TopologyManager
from nodeagent.core.resources.resource import Resource, ResourceHints, Share


def preferred_of_two(managers: Iterable[Resource], promises: Promises, a: int, b: int) -> int | None:
    """Return which of two NUMA nodes the managers prefer, by `prefer-most-allocated-numa-node`. None means that the managers disagree or
    all abstain.
    """
    votes = set()
    for manager in managers:
        shares = manager.list_shares(promises, manager.name)
        of_a, of_b = (_compute_percent(shares, NumaMask(1 << node)) or 0 for node in (a, b))
        if of_a != of_b:
            votes.add(a if of_a > of_b else b)
    return votes.pop() if len(votes) == 1 else None


def rank_by_strategy(
    topology: TopologyManager, managers: Iterable[Resource], promises: Promises, hints: ResourceHints
) -> SetRank | None:
    """Return a function that ranks sets of NUMA nodes by `numa-allocation-strategy`. The set with the lowest rank is best. None means that
    the option isn't set.

    Args:
        topology: the topology manager, with its options.
        managers: all resource managers.
        promises: the allocations before this decision.
        hints: the hints that will be merged. Resources whose hints accept every node don't take part in the ranking.
    """
    if topology.strategy is None:
        return None
    weights = dict(topology.score_weights)
    scored = [
        (weight, shares)
        for name, each in hints
        if isinstance(each, HintFamily) or any(mask is not None for mask, _ in each)
        for weight in [weights.get(name, 1)]
        for manager in managers
        for shares in [manager.list_shares(promises, name)]
        if weight and shares
    ]
    sign = 1 if topology.strategy is Strategy.LEAST_ALLOCATED else -1

    def rank(mask: NumaMask) -> int:
        scores = [
            (weight, max(1, percent))
            for weight, shares in scored
            for percent in [_compute_percent(shares, mask)]
            if percent is not None
        ]
        total = sum(weight for weight, _ in scores)
        return sign * (sum(weight * score for weight, score in scores) // total) if total else 0

    return rank


def _compute_percent(shares: Iterable[Share], mask: NumaMask) -> int | None:
    """Return the allocated percentage of a resource on these NUMA nodes. None means that the nodes have none of the resource."""
    inside = [share for share in shares if not share.nodes & ~mask]
    allocatable = sum(share.allocatable for share in inside)
    return sum(share.allocated for share in inside) * 100 // allocatable if allocatable > 0 else None
