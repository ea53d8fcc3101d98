"""Rotation: an order in which many things, such as files, are checked a few at a time, each equally often."""

import math
from collections.abc import Mapping


class Rotation:
    """Order of checks. Each thing is checked once before any thing is checked again."""

    def __init__(self) -> None:
        self._left: list[str] = []

    def take(self, things: Mapping[str, object], part: float) -> list[str]:
        """Return the keys of the things to check next.

        Args:
            things: all things by key. They may differ from call to call.
            part: fraction of the things to return, 0 to 1. If the fraction isn't 0, at least one thing is returned.
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
