"""Merges by hand, and described hints against listed ones: their merge on small machines, whole decisions, and the reference's vectors."""

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from nodeagent.core.model.idset import NumaSet
from nodeagent.core.numa import hint_family
from nodeagent.core.numa.hint_family import HintFamily, Hints, merge_families
from nodeagent.core.numa.hints import DONT_CARE, UNSATISFIABLE, HintList, Merged, MergeRules, masks_by_size, merge
from nodeagent.core.numa.node_search import Cover, Steps, narrowest
from nodeagent.formats.scenario.scenario import scenario_from_text
from nodeagent.views.simulate.scenario_replay import replay
from tests.support.decision_vectors import difference, vectors
from tests.support.shares import share, share_of

NODES = 5
ALL = (1 << NODES) - 1
MASKS = masks_by_size(range(NODES))
DISTANCES = {
    a: {b: 10 if a == b else 12 if a // 2 == b // 2 else 20 + abs(a - b) for b in range(NODES)} for a in range(NODES)
}
SOCKETS = (0b00011, 0b01100, 0b10000)


@pytest.mark.parametrize(
    ("lists", "expected"),
    [
        ((((1, False),), ((2, False),)), (0b11, False)),
        ((((1, True),), ((2, True),)), (0b11, False)),
        ((((1, False),), ((3, True),)), (0b01, False)),
        ((), (0b11, True)),
        ((((1, True), (3, False)), ((None, True),)), (0b01, True)),
    ],
)
def test_merged(lists: Any, expected: tuple[int, bool]) -> None:
    found = merge(MergeRules(0b11, single_node=False), lists)
    assert (found.mask, found.preferred) == expected


def test_the_narrowest_of_what_lists_and_families_prefer() -> None:
    both: HintList = ((0b011, True), (0b100, True))
    rules = MergeRules(0b111, single_node=False)
    for lists in ([both, HintFamily(both, None, 1)], [HintFamily(both, None, 1)], [HintFamily(both, None, 2), both]):
        assert merge_families(rules, lists, Steps(100)) == Merged(0b100, preferred=True)


@st.composite
def covers(draw: st.DrawFn) -> Cover:
    universe = draw(st.integers(1, ALL))
    ids = list(NumaSet(universe))
    width = draw(st.integers(0, 2))
    amounts = [tuple(draw(st.integers(0, 4)) for _ in range(width)) for _ in ids]
    return Cover(
        universe,
        tuple(draw(st.integers(-1, 9)) for _ in range(width)),
        tuple(zip(ids, amounts, strict=True)),
        forced=draw(st.sampled_from([0, 0, universe & 0b00101])),
        least=draw(st.integers(1, 2)),
    )


@st.composite
def families(draw: st.DrawFn) -> HintFamily:
    found = draw(covers())
    cover = None if found.is_empty else found
    masks = draw(st.lists(st.integers(1, ALL), min_size=0 if cover else 1, max_size=3, unique=True))
    listed = tuple((mask, draw(st.booleans())) for mask in masks)
    sockets = draw(st.sampled_from([None, None, 1, 2]))
    return HintFamily(listed, cover, draw(st.integers(1, 3)), SOCKETS if sockets else (), sockets)


def listing(hints: Hints) -> HintList:
    """Write a family out."""
    if not isinstance(hints, HintFamily):
        return hints
    cover = hints.cover
    covered = () if cover is None else ((m, hints.is_preferred(m)) for m in MASKS if cover.contains(m))
    return (*hints.listed, *covered)


plain_lists = st.one_of(
    st.sampled_from([DONT_CARE, UNSATISFIABLE]),
    st.lists(st.tuples(st.integers(1, ALL), st.booleans()), min_size=1, max_size=5).map(tuple),
)


@settings(max_examples=share_of(500))
@given(families(), families(), st.lists(plain_lists, max_size=1), st.integers(0, 3), st.booleans())
def test_families_merge_as_their_lists(
    one: HintFamily, other: HintFamily, plain: list[HintList], copies: int, closest: bool
) -> None:
    # Equal families, as of a manager's resources, and different ones.
    hints: list[Hints] = [*plain, other, *[one] * copies]
    rules = MergeRules(ALL, single_node=False, distances=DISTANCES if closest else None)
    steps = Steps(hint_family.MAX_STEPS)
    assert merge_families(rules, hints, steps) == merge(rules, [listing(each) for each in hints])
    assert not steps.are_over


@given(families())
def test_single_nodes_are_the_preferred_hints_of_one_node(family: HintFamily) -> None:
    wanted = {mask for mask, preferred in listing(family) if preferred and mask is not None and mask.bit_count() == 1}
    assert {mask for mask, _ in family.single_nodes()} == wanted
    assert all(preferred for _, preferred in family.single_nodes())


@given(covers())
def test_the_narrowest_set_of_a_cover(cover: Cover) -> None:
    fitting = [mask for mask in MASKS if cover.contains(mask)]
    assert cover.is_empty == (not fitting)
    found = narrowest(cover, Steps(hint_family.MAX_STEPS))
    assert found == min(fitting, key=lambda mask: (mask.bit_count(), mask), default=None)
    assert all(cover.fewest() <= mask.bit_count() for mask in fitting)


@pytest.mark.parametrize("name", ["topology", "memory", "all"])
def test_described_hints_decide_as_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint_family, "MAX_LISTED_NODES", 0)
    found = []
    for vector in share(list(vectors(name))):
        scenario = scenario_from_text(json.dumps(vector["scenario"]), name)
        place = difference(vector["expected"], json.loads(json.dumps(replay(scenario))))
        found += [] if place is None else [f"{scenario.id}{place[:400]}"]
    assert not found, f"{len(found)} differ, the first are\n" + "\n".join(found[:5])
