"""Counts wake-ups, and waits for them."""

import threading
from collections.abc import Callable

DEADLINE_SECONDS = 60


class Wakes:
    def __init__(self) -> None:
        self.count = 0
        self._condition = threading.Condition()

    def __call__(self) -> None:
        with self._condition:
            self.count += 1
            self._condition.notify_all()

    def during(self, change: Callable[[], object]) -> bool:
        """Make a change; answer whether it woke us."""
        with self._condition:
            before = self.count
        change()
        with self._condition:
            return self._condition.wait_for(lambda: self.count > before, DEADLINE_SECONDS)
