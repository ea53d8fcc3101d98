"""Search for sets of NUMA nodes with enough resources, without listing all sets. Machines with many nodes have too many sets.

The search solves two problems. A *cover* describes sets of nodes that have enough resources, and the search finds the best of these sets. A
*remainder* is what several covers have in common: the search takes one set from each cover, and finds the best intersection. The search
decides for each node, from the highest ID down, whether to leave the node out (tried first) or to keep it. It therefore finds results in
ascending order of their masks. Three techniques keep the search short: bounds on what the undecided nodes can still contribute, a fixed
order among equivalent nodes, and a record of states that led to no result.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from msgspec import Struct

from nodeagent.core.model.idset import NumaMask

Distances = Mapping[int, Mapping[int, int]]
"""Distance from one node to another, by the IDs of both."""

AmountsByNode = tuple[int, ...]

State = tuple[Any, ...]
"""Summary of the decisions so far in a search. Its type depends on the problem."""


MORE_STEPS = 500
"""Number of steps for which a search continues after its first result, in order to find a set with lower node IDs. These steps take some
milliseconds. Most searches need only one more step.
"""


class Steps(Struct):
    """Counter of search steps, with a limit for a whole merge. One step examines one partial set of nodes."""

    limit: int
    taken: int = 0

    @property
    def are_over(self) -> bool:
        return self.taken >= self.limit


class Cover(Struct, frozen=True):
    """Conditions that describe sets of nodes. A set meets them if it lies within `universe`, contains `forced`, has at least `least` nodes,
    and has enough of each resource.
    """

    universe: NumaMask
    needs: tuple[int, ...]
    """Required amount of each resource."""
    amounts: tuple[tuple[int, AmountsByNode], ...]
    """Amounts of each node in the universe, as pairs (node, its amount of each resource), in ascending order of nodes."""
    forced: NumaMask = NumaMask(0)
    least: int = 1

    @property
    def is_empty(self) -> bool:
        """Return whether no set meets the conditions."""
        return (
            bool(self.forced & ~self.universe) or self.universe.bit_count() < self.least or not self.has(self.universe)
        )

    def has(self, mask: NumaMask) -> bool:
        """Return whether these nodes together have enough of each resource. The other conditions aren't checked."""
        kept = [amounts for node, amounts in self.amounts if mask >> node & 1]
        return all(sum(amounts[k] for amounts in kept) >= need for k, need in enumerate(self.needs))

    def contains(self, mask: NumaMask) -> bool:
        return self.has_right_nodes(mask) and self.has(mask)

    def has_right_nodes(self, mask: NumaMask) -> bool:
        """Return whether the nodes meet all conditions except those for the amounts."""
        return not mask & ~self.universe and not self.forced & ~mask and mask.bit_count() >= self.least

    def sum_up(self, nodes: Sequence[int], number: int) -> list[int]:
        """Sum up the amounts of resource `number` for each set of the nodes. The index of a sum is the set's index as in hint_table.py."""
        amounts = dict(self.amounts)
        sums = [0]
        for node in nodes:
            own = amounts[node][number] if node in amounts else 0
            sums += [total + own for total in sums]
        return sums

    def within(self, universe: NumaMask, *, forced: NumaMask = NumaMask(0)) -> "Cover":
        """Return a copy of the cover with a smaller universe and with additional forced nodes."""
        kept = tuple(item for item in self.amounts if universe >> item[0] & 1)
        return Cover(NumaMask(self.universe & universe), self.needs, kept, NumaMask(self.forced | forced), self.least)

    def fewest(self) -> int:
        """Return a lower bound on the number of nodes in a set that meets the conditions: the number that the scarcest resource alone
        needs.
        """
        fewest = max(self.least, self.forced.bit_count())
        for k, need in enumerate(self.needs):
            sums = accumulate(sorted((amounts[k] for _, amounts in self.amounts), reverse=True))
            fewest = max(fewest, 0 if need <= 0 else 1 + sum(1 for total in sums if total < need))
        return fewest


def both(covers: Sequence[Cover]) -> Cover:
    """Combine covers into a single one, which describes the sets that meet the conditions of all these covers."""
    universe, forced = covers[0].universe, NumaMask(0)
    for cover in covers:
        universe = NumaMask(universe & cover.universe)
        forced = NumaMask(forced | cover.forced)
    tables = [dict(cover.amounts) for cover in covers]
    return Cover(
        universe,
        tuple(need for cover in covers for need in cover.needs),
        tuple(
            (node, tuple(amount for table in tables for amount in table[node]))
            for node, _ in covers[0].amounts
            if universe >> node & 1
        ),
        forced,
        max(cover.least for cover in covers),
    )


def fittest_cover(
    cover: Cover,
    count: int,
    steps: Steps,
    *,
    distances: Distances | None = None,
    sockets: Sequence[NumaMask] = (),
    is_allowed: Callable[[NumaMask], bool] | None = None,
) -> NumaMask | None:
    """Find the best set of exactly `count` nodes that meets the cover's conditions. With distances, sets of closer nodes are better.
    Without distances or with equal distances, lower masks are better. None means that no set was found.

    Args:
        cover: the conditions for the set.
        count: the number of nodes.
        steps: the counter that limits the search.
        distances: the distances between nodes. None means that distances don't matter.
        sockets: the nodes of each socket, which are needed if `is_allowed` depends on sockets.
        is_allowed: a further condition for the set.
    """
    left = count - cover.forced.bit_count()
    if left < 0 or count < cover.least:
        return None
    nodes = [(node, amounts) for node, amounts in reversed(cover.amounts) if not cover.forced >> node & 1]
    missing = list(cover.needs)
    for node, amounts in cover.amounts:
        if cover.forced >> node & 1:
            missing = [need - amount for need, amount in zip(missing, amounts, strict=True)]
    problem = _CoverProblem(nodes, tuple(missing), sockets)
    return _find_fittest(problem, left, steps, cover.forced, distances, is_allowed)


def narrowest(cover: Cover, steps: Steps) -> NumaMask | None:
    """Find the smallest set of nodes that meets the cover's conditions. Of equally small sets, the lowest mask is chosen. None means that
    no set was found.
    """
    for count in range(cover.fewest(), cover.universe.bit_count() + 1):
        found = fittest_cover(cover, count, steps)
        if found is not None:
            return found
    return None


def fittest_remainder(
    universe: NumaMask, covers: Sequence[Cover], count: int, steps: Steps, distances: Distances | None = None
) -> NumaMask | None:
    """Find the best `count` nodes of `universe` that are the intersection of sets, one from each cover. None means that no such nodes were
    found.

    Each set meets the conditions of its cover. The same `Cover` may be given several times. Each cover must have at least one set, and its
    universe must contain `universe`.
    """
    ids = [node for node, _ in reversed(covers[0].amounts) if universe >> node & 1]
    if count == len(ids):
        return universe
    return _find_fittest(_RemainderProblem(ids, covers), count, steps, NumaMask(0), distances, None)


def _find_fittest(
    problem: "_CoverProblem | _RemainderProblem",
    count: int,
    steps: Steps,
    forced: NumaMask,
    distances: Distances | None,
    is_allowed: Callable[[NumaMask], bool] | None,
) -> NumaMask | None:
    """Find the best set that consists of the forced nodes and `count` others.

    Sets are examined roughly in ascending order of their masks. If several covers have sets without the same node, a set with a higher mask
    may come first. After its first result, the search therefore continues for `MORE_STEPS` steps to find a lower mask.
    """
    ids = problem.ids
    kinds = _classify_nodes(problem, distances)
    decided = [sum(1 << node for node in ids[:position]) for position in range(len(ids) + 1)]
    best: NumaMask | None = None
    best_cost = 0
    seen: dict[tuple[int, int, State, int], int] = {}
    pending: list[tuple[int, int, int, State, int]] = [(0, forced, count, problem.start, 0)]
    step_limit = steps.limit
    while pending and steps.taken < step_limit:
        steps.taken += 1
        position, kept, left, state, kept_kinds = pending.pop()
        ahead = len(ids) - position
        if left > ahead or problem.is_hopeless(state, position, left):
            continue
        cost = 0 if distances is None else _bound_cost(distances, kept, ids[position:], left)
        if best is not None and (
            cost >= best_cost if distances is not None else kept & decided[position] > best & decided[position]
        ):
            continue
        if not ahead:
            found = NumaMask(kept)
            if (best is None or distances is not None or found < best) and (is_allowed is None or is_allowed(found)):
                if best is None and distances is None:
                    step_limit = min(step_limit, steps.taken + MORE_STEPS)
                best, best_cost = found, cost
            continue
        if distances is None and is_allowed is None:
            # An earlier visit with the same state and undecided nodes had a mask that is no higher, so this visit finds nothing better.
            if seen.get((position, left, state, kept_kinds), kept + 1) <= kept:
                continue
            seen[position, left, state, kept_kinds] = kept
        node = ids[position]
        if left:
            pending.append(
                (position + 1, kept | 1 << node, left - 1, problem.with_kept(state, node), kept_kinds | kinds[node])
            )
        if ahead > left and not kept_kinds & kinds[node]:
            # This case is pushed last, so the search first tries to leave the node out.
            pending += [(position + 1, kept, left, after, kept_kinds) for after in problem.with_left_out(state, node)]
    return best


def _classify_nodes(problem: "_CoverProblem | _RemainderProblem", distances: Distances | None) -> dict[int, int]:
    """Return a bitmask for each node that identifies the node's kind. Nodes of the same kind can replace each other in every set, so the
    search needs to try them in one order only.
    """
    first: list[tuple[object, int]] = []
    kinds = {}
    for node in problem.ids:
        kind = problem.kind(node)
        for number, (other_kind, other) in enumerate(first):
            if kind == other_kind and (distances is None or _have_equal_distances(distances, node, other)):
                kinds[node] = 1 << number
                break
        else:
            kinds[node] = 1 << len(first)
            first.append((kind, node))
    return kinds


def _have_equal_distances(distances: Distances, a: int, b: int) -> bool:
    return (
        distances[a][a] == distances[b][b]
        and distances[a][b] == distances[b][a]
        and all(
            distances[a][x] == distances[b][x] and distances[x][a] == distances[x][b]
            for x in distances
            if x not in (a, b)
        )
    )


def _bound_cost(distances: Distances, kept: int, ahead: Sequence[int], left: int) -> int:
    """Return a lower bound on the sum of distances between all ordered pairs of kept nodes, if `left` more of the undecided nodes
    are kept.
    """
    chosen = [node for node in distances if kept >> node & 1]
    cost = sum(distances[a][b] for a in chosen for b in chosen)
    if not left:
        return cost
    added = sorted(distances[n][n] + sum(distances[n][c] + distances[c][n] for c in chosen) for n in ahead)
    nearest = min((distances[a][b] for a in ahead for b in ahead if a != b), default=0)
    return cost + sum(added[:left]) + left * (left - 1) * nearest


class _CoverProblem:
    """Search problem of a cover. The state of the search is the amount of each resource that the kept nodes lack."""

    def __init__(
        self, nodes: Sequence[tuple[int, AmountsByNode]], missing: AmountsByNode, sockets: Sequence[NumaMask]
    ) -> None:
        self.ids = [node for node, _ in nodes]
        self.start: State = missing
        self.sockets = sockets
        self.amounts = dict(nodes)
        # Index: position, amount, number of nodes. Value: the largest amount that this many undecided nodes have.
        self.most = [
            [
                tuple(accumulate(sorted((each[k] for _, each in nodes[position:]), reverse=True), initial=0))
                for k in range(len(missing))
            ]
            for position in range(len(nodes) + 1)
        ]

    def kind(self, node: int) -> object:
        return self.amounts[node], [socket >> node & 1 for socket in self.sockets]

    def with_kept(self, state: State, node: int) -> State:
        return tuple(need - amount for need, amount in zip(state, self.amounts[node], strict=True))

    def with_left_out(self, state: State, _node: int) -> Iterable[State]:
        return (state,)

    def is_hopeless(self, state: State, position: int, left: int) -> bool:
        return any(need > most[left] for need, most in zip(state, self.most[position], strict=True))


class _RemainderProblem:
    """Search problem of a remainder. A node can be left out only if one of the covers has a set without this node. The state of the search
    is the number of nodes and the amounts that each cover can still do without.
    """

    def __init__(self, ids: Sequence[int], covers: Sequence[Cover]) -> None:
        self.ids = ids
        self.covers = tuple(dict.fromkeys(covers))
        self.tables = [dict(cover.amounts) for cover in self.covers]
        numbers = {cover: number for number, cover in enumerate(self.covers)}
        self.start: State = tuple(sorted(_compute_spare(numbers[cover], cover) for cover in covers))
        # Index: position, cover, amount, number of nodes. Value: the smallest amount that this many undecided nodes have.
        self.least = [
            [
                [tuple(accumulate(sorted(table[node][k] for node in ids[position:]))) for k in range(len(cover.needs))]
                for cover, table in zip(self.covers, self.tables, strict=True)
            ]
            for position in range(len(ids) + 1)
        ]

    def kind(self, node: int) -> object:
        return [(table[node], cover.forced >> node & 1) for cover, table in zip(self.covers, self.tables, strict=True)]

    def with_kept(self, state: State, _node: int) -> State:
        return state

    def with_left_out(self, state: State, node: int) -> Iterable[State]:
        for place, (number, spare, over) in enumerate(state):
            if not spare or self.covers[number].forced >> node & 1 or (place and state[place - 1] == state[place]):
                continue
            left = tuple(amount - given for amount, given in zip(over, self.tables[number][node], strict=True))
            if min(left, default=0) >= 0:
                yield tuple(sorted((*state[:place], (number, spare - 1, left), *state[place + 1 :])))

    def is_hopeless(self, state: State, position: int, left: int) -> bool:
        least = self.least[position]
        to_give = len(self.ids) - position - left
        for number, spare, over in state:
            if to_give <= 0:
                return False
            can = (bisect_right(sums, amount) for sums, amount in zip(least[number], over, strict=True))
            to_give -= min((spare, *can))
        return to_give > 0


def _compute_spare(number: int, cover: Cover) -> tuple[int, int, AmountsByNode]:
    over = tuple(sum(amounts[k] for _, amounts in cover.amounts) - need for k, need in enumerate(cover.needs))
    return number, cover.universe.bit_count() - cover.least, over
