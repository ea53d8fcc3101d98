"""The wall clock as the agent reads it: the time, and by how much the clock was set since the last reading. Knows nothing of waits."""

import time

_SMALLEST_STEP_MS = 1_000
"""Smaller differences are ignored until they add up: the clocks are read one after the other, and pods wait for seconds."""
_READING_MS = 100


class Clock:
    """The wall clock, followed from creation on.

    Args:
        passed_ms: a time that has passed. A clock that is behind it was set back in the meantime, by at least the difference.
    """

    def __init__(self, passed_ms: int = 0) -> None:
        now_ms, lead_ms = _read()
        self._lead_ms = lead_ms + max(0, passed_ms - now_ms)

    def read(self) -> tuple[int, int]:
        """Return the wall clock's time, and by how much it was set since the last call; both in milliseconds."""
        now_ms, lead_ms = _read()
        set_by_ms = lead_ms - self._lead_ms
        if abs(set_by_ms) <= _SMALLEST_STEP_MS:
            return now_ms, 0
        self._lead_ms = lead_ms
        return now_ms, set_by_ms


def _read() -> tuple[int, int]:
    """Return the wall clock's time, and by how much it is ahead of the time since boot.

    CLOCK_BOOTTIME can't be set, it keeps running while the machine sleeps, and NTP slows both clocks alike (clock_gettime(2)).
    """
    while True:
        before_ms, now_ms, after_ms = _boot_ms(), time.time_ns() // 1_000_000, _boot_ms()
        if after_ms - before_ms <= _READING_MS:  # else this process was delayed between the two
            return now_ms, now_ms - after_ms


def _boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
