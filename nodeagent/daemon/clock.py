"""The wall clock as the agent reads it: what time it is, and by how much the clock was set since. Knows nothing that waits for a moment."""

import time

_SMALLEST_STEP_MS = 1_000
"""What is less keeps until it has added up: clocks are read one after the other, and seconds are what pods wait for."""
_READING_MS = 100


class Clock:
    """The wall clock, followed from its making on.

    Args:
        passed_ms: a moment that has passed. A clock that is behind it was set back meanwhile, by so much at least.

    """

    def __init__(self, passed_ms: int = 0) -> None:
        now_ms, lead_ms = _read()
        self._lead_ms = lead_ms + max(0, passed_ms - now_ms)

    def read(self) -> tuple[int, int]:
        """Give the wall clock's time, and by how much it was set since this was last said; both in milliseconds."""
        now_ms, lead_ms = _read()
        set_by_ms = lead_ms - self._lead_ms
        if abs(set_by_ms) <= _SMALLEST_STEP_MS:
            return now_ms, 0
        self._lead_ms = lead_ms
        return now_ms, set_by_ms


def _read() -> tuple[int, int]:
    """Give the wall clock's time, and by how much it is ahead of the time since boot.

    Nobody can set CLOCK_BOOTTIME, it goes on while the machine sleeps, and NTP slows both clocks alike (clock_gettime(2)).
    """
    while True:
        before_ms, now_ms, after_ms = _boot_ms(), time.time_ns() // 1_000_000, _boot_ms()
        if after_ms - before_ms <= _READING_MS:  # else this process was kept waiting between the two
            return now_ms, now_ms - after_ms


def _boot_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
