"""Explanation of a merge of hints: what each resource's hints say about each set of NUMA nodes, which set won, and why the others lost.

The merge itself (core/numa/hints.py, core/numa/hint_family.py) determines the winner. This module finds the reasons with the same
comparisons.
"""

import enum
from collections.abc import Iterable
from itertools import combinations, islice

from msgspec import Struct

from nodeagent.core.admission.affinity_score import preferred_of_two, rank_by_strategy
from nodeagent.core.admission.managers import Managers
from nodeagent.core.admission.one_pod import MergeReport
from nodeagent.core.model.demand import PodDemand
from nodeagent.core.model.idset import NumaMask, NumaSet
from nodeagent.core.model.pod import CPU
from nodeagent.core.model.promises import Promises
from nodeagent.core.numa.hint_family import MAX_STEPS, HintFamily, Hints
from nodeagent.core.numa.hints import fitness, non_preferred_rank, wanted_count
from nodeagent.core.numa.node_search import Steps
from nodeagent.core.numa.topology_manager import Strategy
from nodeagent.core.resources.explainer import ResourceEvent

_MAX_ENUMERATED = 8
"""Largest number of NUMA nodes for which all sets of nodes are explained. On larger machines, only the single nodes, the sets listed as
hints and the smallest other sets are explained.
"""
_MOST_SETS = 2**_MAX_ENUMERATED - 1


class Opinion(enum.StrEnum):
    """What the hints of one resource say about a set of NUMA nodes."""

    ANY = "any"
    """The resource accepts any set of nodes."""
    PREFERRED = "preferred"
    POSSIBLE = "possible"
    """The nodes have enough of the resource, but the request would need fewer nodes on an empty machine."""
    NO = "no"


class Verdict(enum.StrEnum):
    WINS = "wins"
    NO_ROOM = "no room"
    """The nodes have too little of at least one resource."""
    NOT_PREFERRED = "not preferred"
    """At least one resource doesn't prefer the set. It lost because all resources prefer another set, or because the policy admits only
    preferred sets.
    """
    SEVERAL_NODES = "several nodes"
    """The set has several nodes, but policy single-numa-node admits only single nodes."""
    MORE_NODES = "more nodes"
    FARTHER = "farther apart"
    """The nodes are farther apart than the winner's nodes (prefer-closest-numa-nodes)."""
    LESS_ALLOCATED = "less allocated"
    """A smaller share of the nodes' resources is allocated than of the winner's, and the strategy prefers the larger share (KEP-6007)."""
    MORE_ALLOCATED = "more allocated"
    """A larger share of the nodes' resources is allocated than of the winner's, and the strategy prefers the smaller share (KEP-6007)."""
    HIGHER = "higher number"
    """The set is as good as the winner, but has higher node IDs."""
    OTHER_SIZE = "other size"
    """Sets with this number of nodes rank below sets with the winner's number of nodes (`non_preferred_rank`). These numbers are compared
    only if no set is preferred by all resources.
    """


class Candidate(Struct, frozen=True):
    nodes: NumaSet
    opinions: tuple[tuple[str, Opinion], ...]
    """What each resource's hints say about the set, in the order in which the resources returned hints."""
    verdict: Verdict
    because_of: tuple[str, ...] = ()
    """Names of the resources because of which the set lost."""


class MergeTrace(Struct, frozen=True):
    container: str | None
    """Name of the container for which hints were merged. None means that they were merged for the pod as a whole."""
    nodes: NumaSet | None
    """NUMA nodes of the merged hint. None means that any nodes are accepted."""
    preferred: bool
    admitted: bool
    candidates: tuple[Candidate, ...]
    """Sets of nodes that are explained, sorted by the number of nodes, then by the mask."""
    all_sets: bool
    """Whether `candidates` contain every set of nodes that at least one resource could use."""
    overruled: tuple[str, ...] = ()
    """Names of the devices that don't prefer the resulting nodes (`preferCPUsNumaNode`)."""
    instead_of: NumaSet | None = None
    """Nodes of the merged hint before it was replaced by a set on which both CPUs and memory can be allocated (`sameNumaNodes`). None means
    that it wasn't replaced.
    """
    silent: tuple[str, ...] = ()
    """Requested memory resources for which the memory manager returned no hint. As in kubelet, it returns none if too little is free."""
    events: tuple[ResourceEvent, ...] = ()
    """Events that resources reported while they computed the hints, such as answers of CPU plugins."""


def trace_merge(managers: Managers, promises: Promises, report: MergeReport, pod: PodDemand) -> MergeTrace:
    """Explain one merge.

    Args:
        managers: the managers that made the decision.
        promises: the promises before the merge.
        report: the hints and the result of the merge.
        pod: the pod's requests.
    """
    topology, merged = managers.providers.topology, report.merged
    rules = topology.rules
    ids = [node.id for node in managers.topology.numa]
    lists_every_set = len(ids) <= _MAX_ENUMERATED
    listed = {m for _, hints in report.hints for m in _list_masks(hints)}
    single = [NumaMask(1 << node) for node in ids]
    small = (NumaMask(sum(chosen)) for size in range(1, len(ids) + 1) for chosen in combinations(single, size))
    masks = {*islice(small, max(0, _MOST_SETS - len(listed))), *single, *listed}
    winner = rules.default_mask if merged.mask is None and merged.preferred else merged.mask
    opinions = {mask: tuple((name, _find_opinion(hints, mask)) for name, hints in report.hints) for mask in masks}
    shown_masks = [m for m in masks if m == winner or any(o in _OFFERS for _, o in opinions[m])]
    if winner is not None and winner not in opinions:
        opinions[winner] = tuple((name, _find_opinion(hints, winner)) for name, hints in report.hints)
        shown_masks.append(winner)
    all_sets = lists_every_set or not any(isinstance(hints, HintFamily) for _, hints in report.hints)
    if not shown_masks and not all_sets:
        shown_masks = sorted(single)
    judge = _SetJudge(managers, promises, report, winner)
    return MergeTrace(
        container=report.container,
        nodes=None if merged.mask is None else NumaSet(merged.mask),
        preferred=merged.preferred,
        admitted=report.admitted,
        candidates=tuple(
            Candidate(NumaSet(mask), opinions[mask], *judge.verdict(mask, opinions[mask]))
            for mask in sorted(shown_masks, key=lambda mask: (mask.bit_count(), mask))
        ),
        overruled=report.overruled,
        instead_of=None if report.instead_of is None else NumaSet(report.instead_of.mask or rules.default_mask),
        silent=_list_resources_without_hint(report, pod),
        all_sets=all_sets,
    )


def _list_resources_without_hint(report: MergeReport, pod: PodDemand) -> tuple[str, ...]:
    amounts = pod.memory if report.container is None else None
    for container in pod.containers:
        amounts = container.memory if container.name == report.container else amounts
    with_hint = {name for name, hints in report.hints if isinstance(hints, HintFamily) or (None, True) not in hints}
    return tuple(name for name, size in amounts or () if size and name not in with_hint)


_OFFERS = (Opinion.PREFERRED, Opinion.POSSIBLE)


def _list_masks(hints: Hints) -> Iterable[NumaMask]:
    if isinstance(hints, HintFamily):
        return (mask for mask, _ in hints.listed)
    return (mask for mask, _ in hints if mask is not None)


def _find_opinion(hints: Hints, mask: NumaMask) -> Opinion:
    if isinstance(hints, HintFamily):
        if hints.prefers(mask):
            return Opinion.PREFERRED
        is_offered = any(m == mask for m, _ in hints.listed) or (hints.cover is not None and hints.cover.contains(mask))
        return Opinion.POSSIBLE if is_offered else Opinion.NO
    if (None, True) in hints:
        return Opinion.ANY
    if (mask, True) in hints:
        return Opinion.PREFERRED
    return Opinion.POSSIBLE if (mask, False) in hints else Opinion.NO


class _SetJudge:
    """Search for the reasons why sets of NUMA nodes lost against the winner of one merge."""

    def __init__(self, managers: Managers, promises: Promises, report: MergeReport, winner: NumaMask | None) -> None:
        self._managers = managers
        self._promises = promises
        self._merged = report.merged
        self._has_replaced = report.instead_of is not None
        self._winner = winner
        self._topology = managers.providers.topology
        self._hints = [hints for _, hints in report.hints]
        self._rank_set = rank_by_strategy(self._topology, managers.providers.resources, promises, report.hints)

    def verdict(self, mask: NumaMask, opinions: tuple[tuple[str, Opinion], ...]) -> tuple[Verdict, tuple[str, ...]]:
        if mask == self._winner:
            return Verdict.WINS, ()
        lacking = tuple(name for name, opinion in opinions if opinion is Opinion.NO)
        if lacking:
            return Verdict.NO_ROOM, lacking
        if self._has_replaced and self._winner is not None:
            fit = fitness(self._topology.rules)
            if fit(mask) < fit(self._winner):
                return Verdict.NO_ROOM, (CPU,)  # a NUMA node of the set has no CPU for the container
        single = self._topology.rules.single_node
        if single and mask.bit_count() > 1:
            return Verdict.SEVERAL_NODES, ()
        reluctant = tuple(name for name, opinion in opinions if opinion is Opinion.POSSIBLE)
        if reluctant and (self._merged.preferred or single or self._winner is None):
            return Verdict.NOT_PREFERRED, reluctant
        assert self._winner is not None, "what every resource prefers would have won"
        if not self._merged.preferred:
            ranks = non_preferred_rank(self._topology.rules, self._find_wanted_count())
            if ranks(mask)[:2] != ranks(self._winner)[:2]:
                return Verdict.OTHER_SIZE, ()
        return self._compare_nodes(mask, self._winner), ()

    def _find_wanted_count(self) -> int:
        listed = wanted_count([hints for hints in self._hints if not isinstance(hints, HintFamily)])
        families = [hints.fewest_nodes(Steps(MAX_STEPS)) for hints in self._hints if isinstance(hints, HintFamily)]
        return max([listed, *families])

    def _compare_nodes(self, mask: NumaMask, winner: NumaMask) -> Verdict:
        if mask.bit_count() > winner.bit_count():
            return Verdict.MORE_NODES
        if self._topology.prefer_most_allocated:
            a, b = mask.bit_length() - 1, winner.bit_length() - 1
            if preferred_of_two(self._managers.providers.resources, self._promises, a, b) == b:
                return Verdict.LESS_ALLOCATED
        fit = fitness(self._topology.rules, self._rank_set)
        _, distances, rank, _ = fit(mask)
        _, distances_of_winner, rank_of_winner, _ = fit(winner)
        if distances > distances_of_winner:
            return Verdict.FARTHER
        if rank == rank_of_winner:
            return Verdict.HIGHER
        is_spread = self._topology.strategy is Strategy.LEAST_ALLOCATED
        return Verdict.MORE_ALLOCATED if is_spread else Verdict.LESS_ALLOCATED
