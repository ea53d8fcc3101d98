"""Search for the largest amount with which a pod is admitted, in a list of descending amounts and with few trial decisions."""

from collections.abc import Callable, Sequence

from nodeagent.core.resources.explainer import NEAREST


def first_by_halving(amounts: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the first amount that fits, found by binary search. All amounts after one that fits are assumed to fit, too. None means that
    no amount fits.
    """
    if not amounts or not fits(amounts[-1]):
        return None
    low, high = 0, len(amounts) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(amounts[middle]) else (middle + 1, high)
    return amounts[high]


def first_nearby(amounts: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the first amount that fits. The amounts closest to the request are tried one by one, because a smaller amount doesn't always
    fit: fewer devices, for instance, may be on other NUMA nodes. None means that no amount fits.
    """
    nearest = next((amount for amount in amounts[:NEAREST] if fits(amount)), None)
    return first_by_halving(amounts[NEAREST:], fits) if nearest is None else nearest
