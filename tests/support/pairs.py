"""Combinations of options in which every two values of different options meet, far fewer than all combinations."""

from collections.abc import Iterable
from itertools import combinations, product


def covering_pairs(*options: Iterable[object]) -> list[tuple[object, ...]]:
    """Return combinations of one value per option, chosen one by one for the most pairs that no earlier one has."""
    left = list(product(*options))
    missing = {pair for one in left for pair in _pairs(one)}
    chosen = []
    while missing:
        best = max(left, key=lambda one: len(missing & _pairs(one)))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


def _pairs(combination: tuple[object, ...]) -> set[tuple[tuple[int, object], ...]]:
    return set(combinations(enumerate(combination), 2))
