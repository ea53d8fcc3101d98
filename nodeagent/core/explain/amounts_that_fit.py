"""Search in a list of descending amounts for the first amount that fits, with few attempts."""

from collections.abc import Callable, Sequence

from nodeagent.core.resources.explainer import NEAREST


def first_by_halving(amounts: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Find the first amount that fits, by binary search. The search assumes that all smaller amounts fit, too."""
    if not amounts or not fits(amounts[-1]):
        return None
    low, high = 0, len(amounts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(amounts[middle]) else (middle + 1, high)
    return amounts[high]


def first_nearby(amounts: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Find the first amount that fits. The nearest amounts are tried one by one, because a smaller amount doesn't always fit. For
    example, fewer devices may be on other NUMA nodes.
    """
    nearest = next((amount for amount in amounts[:NEAREST] if fits(amount)), None)
    return first_by_halving(amounts[NEAREST:], fits) if nearest is None else nearest
