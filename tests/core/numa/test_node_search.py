"""The search for sets of NUMA nodes against going through all of them, and the bounds that keep it short."""

from functools import reduce
from itertools import product
from operator import and_

import pytest
from hypothesis import assume, given, strategies as st
from msgspec.structs import replace

from nodeagent.core.model.idset import NumaSet
from nodeagent.core.numa.node_search import (
    Cover,
    Distances,
    Steps,
    both,
    fittest_cover,
    fittest_remainder,
    narrowest,
)

NODES = 4
ALL = (1 << NODES) - 1
SOCKETS = (0b0011, 0b1100)
NEAR = {a: {b: 10 if a == b else 12 if a // 2 == b // 2 else 20 for b in range(NODES)} for a in range(NODES)}
ODD = {a: {b: 10 + (3 * a + 5 * b) % 7 for b in range(NODES)} for a in range(NODES)}
"""Not even symmetric."""
distances = st.sampled_from([None, NEAR, ODD])


@st.composite
def covers(draw: st.DrawFn, universe: int | None = None) -> Cover:
    """With `universe`: one that it lies in, and that isn't empty."""
    own = draw(st.integers(1, ALL)) | (universe or 0)
    ids = list(NumaSet(own))
    width = draw(st.integers(0, 2))
    amounts = [tuple(draw(st.integers(0, 4)) for _ in range(width)) for _ in ids]
    needs = tuple(draw(st.integers(-1, 9)) for _ in range(width))
    forced = own & draw(st.sampled_from([0, 0, 0b0001, 0b0100, 0b1010]))
    return Cover(own, needs, tuple(zip(ids, amounts, strict=True)), forced, draw(st.integers(1, 2)))


def cost(mask: int, between: Distances | None) -> int:
    return 0 if between is None else sum(between[a][b] for a in NumaSet(mask) for b in NumaSet(mask))


def fittest(masks: list[int], between: Distances | None) -> int | None:
    return min(masks, key=lambda mask: (cost(mask, between), mask), default=None)


@given(covers(), st.integers(0, NODES), distances, st.sampled_from([None, 1, 2]))
def test_the_fittest_set_of_a_size(cover: Cover, count: int, between: Distances | None, sockets: int | None) -> None:
    def is_allowed(mask: int) -> bool:
        return sockets is None or sum(1 for socket in SOCKETS if socket & mask) == sockets

    steps = Steps(10_000)
    masks = [m for m in range(1, ALL + 1) if m.bit_count() == count and cover.contains(m) and is_allowed(m)]
    found = fittest_cover(
        cover,
        count,
        steps,
        distances=between,
        sockets=SOCKETS if sockets else (),
        is_allowed=is_allowed if sockets else None,
    )
    assert found == fittest(masks, between)
    assert steps.taken <= 2 ** (NODES + 1)


@given(covers(), covers())
def test_both_covers_at_once(one: Cover, other: Cover) -> None:
    assume(one.universe & other.universe)
    together = both([one, other])
    for mask in range(1, ALL + 1):
        assert together.contains(mask) == (one.contains(mask) and other.contains(mask))


@given(covers(), st.integers(1, ALL), st.sampled_from([0, 1, 2, 8]))
def test_a_cover_within_some_nodes(cover: Cover, universe: int, forced: int) -> None:
    narrowed = cover.within(universe, forced=forced) if forced else cover.within(universe)
    for mask in range(1, ALL + 1):
        inside = not mask & ~universe and not forced & ~mask
        assert narrowed.contains(mask) == (cover.contains(mask) and inside)


@given(st.data(), st.integers(1, ALL), st.integers(1, NODES), distances)
def test_the_fittest_remainder_of_a_size(
    data: st.DataObject, universe: int, count: int, between: Distances | None
) -> None:
    chosen = data.draw(st.lists(covers(universe), min_size=1, max_size=2))
    chosen += data.draw(st.sampled_from([[], chosen[:1]]))
    assume(count <= universe.bit_count() and not any(cover.is_empty for cover in chosen))
    sets = [[mask for mask in range(1, ALL + 1) if cover.contains(mask)] for cover in chosen]
    commons = {reduce(and_, masks) & universe for masks in product(*sets)}
    expected = fittest([mask for mask in commons if mask.bit_count() == count], between)
    steps = Steps(10_000)
    assert fittest_remainder(universe, chosen, count, steps, between) == expected
    assert not steps.are_over


THREE = ((0, (2, 1)), (1, (3, 1)), (2, (4, 1)))


@pytest.mark.parametrize(
    ("needs", "forced", "least", "expected"),
    [
        ((0, 0), 0, 1, 1),
        ((-1, 0), 0, 2, 2),
        ((4, 0), 0, 1, 1),
        ((5, 0), 0, 1, 2),
        ((7, 0), 0, 1, 2),
        ((8, 0), 0, 1, 3),
        ((1, 2), 0, 1, 2),
        ((1, 3), 0, 1, 3),
        ((10, 1), 0, 1, 4),
        ((1, 1), 0b011, 1, 2),
    ],
)
def test_a_lower_bound_by_each_amount_alone(needs: tuple[int, int], forced: int, least: int, expected: int) -> None:
    assert Cover(0b111, needs, THREE, forced, least).fewest() == expected


def test_a_search_ends_when_its_steps_are_taken() -> None:
    """Sixteen nodes that are all different, and an amount that none but the whole has."""
    amounts = tuple((node, (1 << node, 1 << 15 - node)) for node in range(16))
    cover = Cover((1 << 16) - 1, (1 << 15, 1 << 15), amounts)
    enough, few = Steps(100_000), Steps(3)
    assert narrowest(cover, enough) == 1 | 1 << 15
    assert narrowest(cover, few) is None
    assert few.taken == 3
    assert few.are_over
    assert not enough.are_over


@pytest.mark.parametrize("count", [8, 16, 32])
def test_nodes_that_are_alike_are_not_told_apart(count: int) -> None:
    """A step per node and per number of nodes left, where there are 2^count sets."""
    amounts = tuple((node, (1,)) for node in range(count))
    cover = Cover((1 << count) - 1, (count // 2,), amounts)
    steps = Steps(10_000)
    assert narrowest(cover, steps) == (1 << count // 2) - 1
    assert steps.taken <= 2 * count + 1
    far = {a: {b: 10 if a == b else 20 for b in range(count)} for a in range(count)}
    steps = Steps(10_000)
    assert fittest_cover(cover, count // 2, steps, distances=far) == (1 << count // 2) - 1
    assert steps.taken <= count * count


def test_nodes_too_far_away_are_not_gone_through() -> None:
    """Half of twelve nodes in a ring: there are 924 sets of six."""
    count = 12
    amounts = tuple((node, (1,)) for node in range(count))
    ring = {a: {b: 10 + min((a - b) % count, (b - a) % count) for b in range(count)} for a in range(count)}
    steps = Steps(10_000)
    found = fittest_cover(Cover((1 << count) - 1, (6,), amounts), 6, steps, distances=ring)
    assert found == 0b111111
    assert steps.taken <= 150


def test_of_each_kind_the_lower_nodes_are_kept() -> None:
    """24 nodes of three kinds: 7 numbers of nodes are tried, the first six in vain."""
    amounts = tuple((node, ((1, 0), (0, 1), (0, 0))[node % 3]) for node in range(24))
    steps = Steps(10_000)
    found = narrowest(Cover((1 << 24) - 1, (6, 6), amounts), steps)
    assert found == sum(1 << node for node in range(18) if node % 3 < 2)
    assert steps.taken <= 1_300


def test_a_node_that_must_stay_is_not_like_one_that_may_go() -> None:
    cover = Cover(0b101, (1,), ((0, (1,)), (2, (1,))), forced=0b100)
    assert fittest_remainder(0b101, [cover], 1, Steps(100)) == 0b100
    assert fittest_remainder(0b101, [replace(cover, forced=0b001)], 1, Steps(100)) == 0b001
    assert fittest_remainder(0b101, [replace(cover, forced=0)], 1, Steps(100)) == 0b001
