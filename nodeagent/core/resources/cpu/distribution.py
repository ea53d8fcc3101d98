"""Choice of CPUs that are spread evenly over the smallest sufficient number of NUMA nodes (option distribute-cpus-across-numa).

Each node of the chosen combination provides the same share. The remainder is provided in groups of CPUs by some of these nodes. The
combination is chosen so that afterwards, the numbers of free CPUs on all NUMA nodes are as equal as possible.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from math import floor, sqrt

from msgspec import Struct

from nodeagent.core.model.idset import CpuMask, CpuSet
from nodeagent.core.resources.cpu.assignment import Picking, ordered_nodes, pick, shortage
from nodeagent.core.resources.cpu.layout import CpuGroup
from nodeagent.core.resources.cpu.observing import Spread
from nodeagent.core.resources.cpu.points import CpuShortage, Question

_INFINITE = float("inf")

_REFERENCE_NODES = 8
MAX_COMBINATIONS = 5_000
"""Maximum number of combinations of NUMA nodes, remainders included, that are compared on a machine with more than 8 nodes. The rest is
ignored, because the comparison would take too long.
"""


class Distributing(Struct, frozen=True):
    """Select step of the static policy with the option distribute-cpus-across-numa."""

    picking: Picking
    """Choice of CPUs within one NUMA node, in packed order and without alignment to uncore caches."""
    group_size: int
    """Number of CPUs that are not divided between NUMA nodes. Under full-pcpus-only, this is kubelet's average core size. Otherwise it is
    1.
    """
    overwritten: bool = False
    """Whether each further combination overwrites the one that is remembered as the best, because both share an array, as in kubelet
    (Erratum.COMBINATIONS_OVERWRITTEN).
    """

    def select(self, question: Question) -> CpuSet | CpuShortage:
        """Choose CPUs for the request. Under full-pcpus-only, only the CPUs of completely free cores are used."""
        picking, free = self.picking, question.free.bits
        available = picking.layout.whole_cores(free) if picking.whole_cores else free
        found = distribute(self, available, question.count)
        return found if isinstance(found, CpuShortage) else CpuSet(found)


class _Combination(Struct, frozen=True):
    """Combination of NUMA nodes: the first `length` elements of an array. With Erratum.COMBINATIONS_OVERWRITTEN, later combinations
    overwrite these elements.
    """

    array: list[int]
    length: int

    def elements(self) -> list[int]:
        return self.array[: self.length]


_EMPTY = _Combination([], 0)


class _NodeChoice(Struct, frozen=True):
    nodes: _Combination
    """Chosen NUMA nodes, as indices into the list of all nodes."""
    remainder: _Combination
    balance: float


def distribute(distributing: Distributing, available: CpuMask, count: int) -> CpuMask | CpuShortage:
    """Choose `count` of the available CPUs, spread evenly over NUMA nodes."""
    picking, size = distributing.picking, distributing.group_size
    if count % size:
        return pick(picking, available, count)
    if count < 1:
        return CpuMask(0)
    layout = picking.layout
    free = CpuMask(available & layout.online)
    if count > free.bit_count():
        return shortage(count, available)
    nodes = ordered_nodes(layout, free)
    counts = [(node.cpus & free).bit_count() for node in nodes]
    per_node = _divide_up(_divide_up(layout.cpu_count, size), len(layout.nodes))
    groups = _divide_up(count, size)
    for k in range(_divide_up(groups, per_node), min(groups, len(nodes)) + 1):
        choice = _choose_combination(distributing, counts, count, k)
        if choice is not None:
            return _take_from_nodes(distributing, nodes, free, count, k, choice)
    return pick(picking, available, count)


def _divide_up(amount: int, by: int) -> int:
    return -(-amount // by)


def _choose_combination(distributing: Distributing, free: list[int], count: int, k: int) -> _NodeChoice | None:
    """Choose the combination of `k` nodes after which the numbers of free CPUs on all nodes are most equal. Of equally good combinations,
    the first is chosen. None means that no combination has enough CPUs.
    """
    size = distributing.group_size
    share = count // k // size * size
    rest = count - share * k
    best: _NodeChoice | None = None
    budget = repeat(None) if len(free) <= _REFERENCE_NODES else iter([None] * MAX_COMBINATIONS)
    # In kubelet, a combination without enough free CPUs also overwrites the best combination so far (Erratum.COMBINATIONS_OVERWRITTEN).
    eligible = [x for x in range(len(free)) if distributing.overwritten or free[x] >= share]
    for combination in _list_combinations(eligible, k, free, budget, overwritten=distributing.overwritten):
        if best is not None and best.balance == 0:
            break
        nodes = combination.elements()
        if sum(free[x] for x in nodes) < count or size * sum(free[x] // size for x in nodes) < count:
            continue
        if any(free[x] < share for x in nodes):
            continue
        after = list(free)
        for x in nodes:
            after[x] -= share
        remainder, balance = _EMPTY, _compute_deviation(after)
        if rest > 0:
            remainder, balance = _choose_remainder(
                distributing, after, [x for x in nodes if after[x] >= size], rest, budget
            )
        if balance < (_INFINITE if best is None else best.balance):
            best = _NodeChoice(combination, remainder, balance)
    return best


def _choose_remainder(
    distributing: Distributing, after: list[int], eligible: list[int], rest: int, budget: Iterator[None]
) -> tuple[_Combination, float]:
    """Choose the nodes that provide the remainder. Also return the standard deviation of the numbers of CPUs that stay free on all nodes.
    If no choice of nodes has enough CPUs, it is infinite.
    """
    size = distributing.group_size
    best, balance = _EMPTY, _INFINITE
    for length in range(len(eligible), 0, -1):
        for combination in _list_combinations(eligible, length, after, budget, overwritten=distributing.overwritten):
            nodes = combination.elements()
            # Only the CPUs of whole free groups count. kubelet counts single CPUs, and can loop forever (Erratum.DISTRIBUTION_HANGS).
            if size * sum(after[x] // size for x in nodes) < rest:
                continue
            deviation = _compute_deviation(_absorb_rest(after, nodes, rest, size))
            if deviation < balance:
                best, balance = combination, deviation
        if balance == 0 and not distributing.overwritten:
            break
    return best, balance


def _absorb_rest(after: list[int], nodes: list[int], rest: int, size: int) -> list[int]:
    """Compute how many CPUs stay free on each node after the remainder is taken. One group of CPUs is taken from each of the nodes in turn
    until the remainder is complete.
    """
    free = list(after)
    while rest > 0:
        for x in nodes:
            if rest > 0 and free[x] >= size:
                free[x] -= size
                rest -= size
    return free


def _take_from_nodes(
    distributing: Distributing, nodes: list[CpuGroup], free: int, count: int, k: int, choice: _NodeChoice
) -> CpuMask | CpuShortage:
    size = distributing.group_size
    share = count // k // size * size
    result = 0
    observer = distributing.picking.observer
    for x in choice.nodes.elements():
        if observer is not None:
            observer(Spread(nodes[x].id, share, is_remainder=False))
        picked = pick(distributing.picking, CpuMask(free & ~result & nodes[x].cpus), share)
        # This node was never checked, and may have too few free CPUs (Erratum.COMBINATIONS_OVERWRITTEN). Nothing is taken from such a node.
        result |= picked if isinstance(picked, int) else 0
    rest = count - share * k
    moved = True
    while rest > 0 and moved:
        moved = False
        for x in choice.remainder.elements():
            inside = CpuMask(free & ~result & nodes[x].cpus)
            if rest > 0 and inside.bit_count() >= size:
                if observer is not None:
                    observer(Spread(nodes[x].id, size, is_remainder=True))
                picked = pick(distributing.picking, inside, size)
                result |= picked if isinstance(picked, int) else 0
                rest -= size
                moved = True
    missing = count - result.bit_count()
    if missing > 0:
        return CpuShortage(f"accounting error, not enough CPUs allocated, remaining: {missing}")
    return CpuMask(result)


def _list_combinations(
    items: Sequence[int], length: int, free: Sequence[int], budget: Iterator[None], *, overwritten: bool
) -> Iterator[_Combination]:
    """Yield combinations of `length` items, in lexicographic order of their indices. Of several combinations with the same numbers of free
    CPUs in the same order, only the first is yielded.

    `budget` limits the number of combinations, and may be shared by several calls.

    kubelet builds combinations in growing arrays (capacities 1, 2, 4, …) and appends in place while there is capacity. Later combinations
    therefore overwrite parts of a remembered combination. If `overwritten` is true, this function does the same. Otherwise each combination
    has an array of its own.
    """
    arrays = (
        _list_overwritten_combinations(items, length, [], 0, 0)
        if overwritten
        else _list_distinct_combinations(items, length, free, 0)
    )
    for _, array in zip(budget, arrays, strict=False):
        yield _Combination(array, length)


def _list_distinct_combinations(
    items: Sequence[int], length: int, free: Sequence[int], start: int
) -> Iterator[list[int]]:
    if length == 0:
        yield []
        return
    tried = set()
    for i in range(start, len(items) - length + 1):
        # If an earlier item had as many free CPUs as this item, all combinations of such an item with the following items were tried
        # already.
        if free[items[i]] not in tried:
            tried.add(free[items[i]])
            for rest in _list_distinct_combinations(items, length - 1, free, i + 1):
                yield [items[i], *rest]


def _list_overwritten_combinations(
    items: Sequence[int], length: int, prefix: list[int], filled: int, start: int
) -> Iterator[list[int]]:
    for i in range(start, len(items) - (length - filled) + 1):
        if filled < len(prefix):
            array = prefix
            array[filled] = items[i]
        else:
            capacity = max(1, 2 * len(prefix))
            array = [*prefix, items[i], *[0] * (capacity - filled - 1)]
        if filled + 1 == length:
            yield array
        else:
            yield from _list_overwritten_combinations(items, length, array, filled + 1, i + 1)


def _compute_deviation(values: list[int]) -> float:
    """Return the population standard deviation as kubelet computes it: as a float, with the mean and the result rounded to thousandths."""
    mean = _round_to_thousandths(sum(values) / len(values))
    return _round_to_thousandths(sqrt(sum((value - mean) ** 2 for value in values) / len(values)))


def _round_to_thousandths(value: float) -> float:
    scaled = value * 1000
    whole = floor(scaled)
    return (whole + 1 if scaled - whole >= 0.5 else whole) / 1000
