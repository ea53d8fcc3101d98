"""Rotation: an order in which many items, such as files, are checked a few at a time and equally often."""

import math
from collections.abc import Mapping


class Rotation:
    """Order of checks. Every item is checked once before any item is checked again."""

    def __init__(self) -> None:
        self._left: list[str] = []

    def take(self, things: Mapping[str, object], part: float) -> list[str]:
        """Return the keys of the items to check next.

        Args:
            things: all items by key. They may differ from call to call.
            part: fraction of the items to return, from 0 to 1. Unless it is 0, at least one item is returned.
        """
        count, taken = math.ceil(part * len(things)), list[str]()
        while len(taken) < count:
            if not self._left:
                self._left = list(reversed(tuple(things)))
            if self._left[-1] in taken:
                break
            key = self._left.pop()
            if key in things:
                taken.append(key)
        return taken
