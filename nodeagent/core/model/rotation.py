"""Rotation: an order in which a periodic check visits all items, such as files, a few at a time."""

import math
from collections.abc import Mapping


class Rotation:
    """Rotating order of items. No item is visited a second time before all others have been visited."""

    def __init__(self) -> None:
        self._left: list[str] = []

    def take(self, things: Mapping[str, object], part: float) -> list[str]:
        """Return the keys of the items to check now.

        Args:
            things: all items by key. Items may be added and removed between calls.
            part: fraction of the items to return, from 0 to 1. If it is above 0, at least one item is returned.
        """
        count, taken = math.ceil(part * len(things)), dict[str, None]()
        while len(taken) < count:
            if not self._left:
                self._left = list(reversed(tuple(things)))
            if self._left[-1] in taken:
                break
            key = self._left.pop()
            if key in things:
                taken[key] = None
        return list(taken)
