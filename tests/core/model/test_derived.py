"""Derived values: equal to those made from scratch after any changes, and made again only where an input changed."""

from hypothesis import given, strategies as st

from nodeagent.core.model.derived import Derived, find_replaced, list_replaced


class Input:
    """Compared by identity, as the immutable values of a state are."""


KEYS = st.sampled_from("abc")


@given(st.lists(st.tuples(st.integers(0, 1), st.dictionaries(KEYS, st.integers(0, 2)))))
def test_values_are_those_made_from_scratch(rounds: list[tuple[int, dict[str, int]]]) -> None:
    inputs = [Input() for _ in range(3)]
    last = Derived[tuple[Input], tuple[int, int]]()
    before: tuple[int | None, dict[str, int]] = (None, {})
    for common, wanted in rounds:
        made: list[int] = []

        def make(of: tuple[Input], common: int = common, made: list[int] = made) -> tuple[int, int]:
            made.append(inputs.index(of[0]))
            return common, made[-1]

        same = {key for key, number in wanted.items() if before == (common, before[1] | {key: number})}
        last = last.derive((common,), wanted.items(), lambda number: (inputs[number],), make, same)
        assert list(last.by_key().items()) == [(key, (common, number)) for key, number in wanted.items()]
        unchanged = before[1].items() & wanted.items() if common == before[0] else set()
        assert sorted(made) == sorted(number for key, number in wanted.items() if (key, number) not in unchanged)
        before = (common, wanted)


@given(st.dictionaries(KEYS, st.integers(0, 2)), st.dictionaries(KEYS, st.integers(0, 2)))
def test_replaced_values_are_other_objects_or_new(old: dict[str, int], new: dict[str, int]) -> None:
    inputs = [Input() for _ in range(3)]
    before, after = ({key: inputs[number] for key, number in one.items()} for one in (old, new))
    assert list_replaced(before, after) == [key for key, number in new.items() if old.get(key) != number]


@given(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), max_size=6))
def test_what_lies_around_the_replaced_parts_is_the_same_and_as_long_as_possible(
    old: list[int], new: list[int]
) -> None:
    inputs = [Input() for _ in range(3)]
    before, after = ([inputs[number] for number in one] for one in (old, new))
    gone, came = find_replaced(before, after)
    assert before[: gone.start] == after[: came.start]
    assert before[gone.stop :] == after[came.stop :]
    left, right = before[gone], after[came]
    assert not (left and right) or (left[0] is not right[0] and left[-1] is not right[-1])
