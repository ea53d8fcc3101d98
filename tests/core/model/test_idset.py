from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.model.idset import MAX_ID, CpuSet, IdSetSyntaxError, NumaSet

ids = st.frozensets(st.integers(0, 300), max_size=60)


@given(ids, ids)
def test_the_algebra_is_that_of_frozenset(a: frozenset[int], b: frozenset[int]) -> None:
    x, y = CpuSet.from_ids(a), CpuSet.from_ids(b)
    assert frozenset(x | y) == a | b
    assert frozenset(x & y) == a & b
    assert frozenset(x - y) == a - b
    assert (x <= y) == (a <= b)
    assert x.isdisjoint(y) == a.isdisjoint(b)
    assert len(x) == len(a)
    assert bool(x) == bool(a)
    assert (x == y) == (a == b)
    assert list(x) == sorted(a)


@given(ids)
def test_text_is_canonical_and_reads_back(a: frozenset[int]) -> None:
    text = str(CpuSet.from_ids(a))
    assert CpuSet.parse(text) == CpuSet.from_ids(a)
    # Ascending, no overlap, no two parts that could be one, no range of one.
    bounds = [tuple(int(n) for n in part.split("-")) for part in text.split(",")] if text else []
    assert all(len(b) == 1 or b[0] < b[1] for b in bounds)
    assert all(left[-1] + 1 < right[0] for left, right in pairwise(bounds))


@given(ids, st.integers(-5, 400))
def test_membership(a: frozenset[int], item: int) -> None:
    assert (item in CpuSet.from_ids(a)) == (item in a)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("0", "0"),
        ("0,1", "0-1"),
        ("3,1,2,2", "1-3"),
        ("0-1,1-2", "0-2"),
        ("5-5", "5"),
        ("007", "7"),
        ("0,2,4-6", "0,2,4-6"),
        ("+1-+3", "1-3"),
        ("0--0", "0"),
    ],
)
def test_reads_any_order_and_repetition(text: str, canonical: str) -> None:
    assert str(CpuSet.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5-3", 'invalid range "5-3" (5 > 3)'),
        ("x", 'strconv.Atoi: parsing "x": invalid syntax'),
        ("1--5", 'invalid range "1--5" (1 > -5)'),
        ("1,,2", 'strconv.Atoi: parsing "": invalid syntax'),
        ("-1", 'strconv.Atoi: parsing "": invalid syntax'),
        ("1-", 'strconv.Atoi: parsing "": invalid syntax'),
        (" 1", 'strconv.Atoi: parsing " 1": invalid syntax'),
        ("1\n", r'strconv.Atoi: parsing "1\n": invalid syntax'),
        ("٣", 'strconv.Atoi: parsing "٣": invalid syntax'),
        (
            "0-99999999999999999999999999999999",
            'strconv.Atoi: parsing "99999999999999999999999999999999": value out of range',
        ),
        (str(MAX_ID + 1), f'strconv.Atoi: parsing "{MAX_ID + 1}": value out of range'),
    ],
)
def test_names_what_is_wrong_in_kubelets_words(text: str, message: str) -> None:
    with pytest.raises(IdSetSyntaxError) as caught:
        CpuSet.parse(text)
    assert str(caught.value) == message


def test_the_largest_number() -> None:
    assert MAX_ID == 65_535
    assert list(CpuSet.parse("65534-65535")) == [65_534, 65_535]


def test_a_number_of_any_length_is_refused_as_out_of_range() -> None:
    with pytest.raises(IdSetSyntaxError, match="value out of range"):
        CpuSet.parse("0-" + "9" * 5000)


def test_kinds_do_not_mix() -> None:
    cpus: object = CpuSet.of(1)
    assert cpus != NumaSet.of(1)
    assert isinstance(NumaSet.of(1) | NumaSet.of(2), NumaSet)
