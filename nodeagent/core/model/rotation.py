"""Rotation, in which many things are looked at evenly, a few at a time."""

import math
from collections.abc import Mapping


class Rotation:
    """Order in which things are looked at. Everything is looked at once before anything is looked at again."""

    def __init__(self) -> None:
        self._left: list[str] = []

    def take(self, things: Mapping[str, object], part: float) -> list[str]:
        """Return the keys of the things to look at next.

        Args:
            things: all things by key. They may come and go between calls.
            part: part of them to return, 0 to 1. At least one is returned if the part isn't 0.
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
