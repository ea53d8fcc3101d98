"""Tables over all sets of nodes say the same as comparing each with each."""

from hypothesis import given, settings, strategies as st

from nodeagent.core.model.idset import NumaMask
from nodeagent.core.numa.hint_family import HintFamily
from nodeagent.core.numa.hint_table import MAX_TABLED_NODES, count_near, find_intersections, order_sets
from nodeagent.core.numa.hints import MergeRules, masks_by_size, merge
from nodeagent.core.numa.node_search import Cover
from nodeagent.core.numa.topology_manager import Scope, TopologyManager, TopologyPolicy
from tests.support.shares import share_of

NODES = st.lists(st.integers(0, 20), min_size=1, max_size=5, unique=True).map(lambda ids: tuple(sorted(ids)))


def some_sets(data: st.DataObject, nodes: tuple[int, ...]) -> list[NumaMask]:
    return data.draw(st.lists(st.sampled_from(masks_by_size(nodes)), max_size=9))


@settings(max_examples=share_of(200), deadline=None)
@given(nodes=NODES, data=st.data())
def test_intersections_are_those_of_each_with_each(nodes: tuple[int, ...], data: st.DataObject) -> None:
    lists = [some_sets(data, nodes) for _ in range(data.draw(st.integers(1, 4)))]
    found = {sum(1 << node for node in nodes)}
    for masks in lists:
        found = {a & b for a in found for b in masks}
    assert find_intersections(lists, nodes) == found - {0}


@settings(max_examples=share_of(200), deadline=None)
@given(nodes=NODES, masks=st.lists(st.integers(0, 2**22 - 1), max_size=9))
def test_a_mask_is_near_the_sets_that_have_one_of_its_nodes(nodes: tuple[int, ...], masks: list[int]) -> None:
    counts = count_near(masks, nodes)
    for index, mask in order_sets(nodes):
        assert counts[index] == sum(1 for each in masks if each & mask)


@settings(max_examples=share_of(200), deadline=None)
@given(nodes=NODES, data=st.data(), need=st.integers(0, 6), preferred=st.integers(1, 4), least=st.integers(1, 3))
def test_a_family_lists_what_it_contains(
    nodes: tuple[int, ...], data: st.DataObject, need: int, preferred: int, least: int
) -> None:
    universe = NumaMask(sum(1 << node for node in nodes[: data.draw(st.integers(1, len(nodes)))]))
    amounts = tuple((node, (data.draw(st.integers(0, 3)),)) for node in nodes if universe >> node & 1)
    cover = Cover(universe, (need,), amounts, least=least)
    family = HintFamily(((NumaMask(1 << nodes[0]), True),), cover, preferred)
    expected = {mask: preferred == mask.bit_count() for mask in masks_by_size(nodes) if cover.contains(mask)}
    first = NumaMask(1 << nodes[0])
    assert dict(family.list_hints(nodes)) == expected | {first: True}


def test_sets_are_in_kubelets_order() -> None:
    nodes = (0, 1, 3, 8)
    assert tuple(mask for _, mask in order_sets(nodes)) == masks_by_size(nodes)


def test_of_sets_equally_close_the_lower_bits_win_on_nine_nodes() -> None:
    """Any two of nine nodes: (0, 1) and (0, 2) are equally close."""
    every = NumaMask(511)
    distances = {a: {b: 10 if a == b else 20 for b in range(9)} for a in range(9)}
    rules = MergeRules(every, single_node=False, distances=distances)
    manager = TopologyManager(TopologyPolicy.RESTRICTED, Scope.CONTAINER, rules)
    pairs = HintFamily((), Cover(every, (2,), tuple((node, (1,)) for node in range(9))), preferred_count=2)
    assert manager.merge([pairs, pairs], lambda _a, _b: None).mask == 0b11
    listed = pairs.list_hints(tuple(range(9)))
    assert merge(rules, [listed, listed]).mask == 0b11


def test_no_merge_of_tables_compares_each_with_each() -> None:
    """Five lists of 4,095 sets each would have 10¹⁸ combinations."""
    nodes = tuple(range(MAX_TABLED_NODES))
    everywhere = tuple((mask, False) for _, mask in order_sets(nodes))
    rules = MergeRules(NumaMask((1 << MAX_TABLED_NODES) - 1), single_node=False)
    assert merge(rules, [everywhere] * 5).mask == 1
