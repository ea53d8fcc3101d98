"""Search for the first sufficient amount in a list of descending amounts, with few trial decisions."""

from collections.abc import Callable, Sequence

from nodeagent.core.resources.explainer import NEAREST


def first_by_halving(amounts: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the first amount for which `fits` is true, found by binary search. It is assumed that each amount smaller than a sufficient
    one is sufficient. None means that no amount is.
    """
    if not amounts or not fits(amounts[-1]):
        return None
    low, high = 0, len(amounts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(amounts[middle]) else (middle + 1, high)
    return amounts[high]


def first_nearby(amounts: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the first amount for which `fits` is true. The first amounts are tried one by one, because a smaller amount isn't always
    sufficient: fewer devices, for instance, may be on other NUMA nodes. None means that no amount is sufficient.
    """
    nearest = next((amount for amount in amounts[:NEAREST] if fits(amount)), None)
    return first_by_halving(amounts[NEAREST:], fits) if nearest is None else nearest
