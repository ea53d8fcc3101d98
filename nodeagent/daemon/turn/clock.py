"""The wall clock: the time, and its lead over the time since boot, which shows how the clock was set. Knows nothing of waits."""

import time
from typing import NamedTuple

_SMALLEST_STEP_MS = 1_000
"""Smaller differences are ignored until they add up: the clocks are read one after the other, and pods wait for seconds."""
_READING_MS = 100


class ClockReading(NamedTuple):
    now_ms: int
    set_by_ms: int
    """By how much the clock was set since the reading whose lead was given."""
    lead_ms: int
    """How much the wall clock is ahead of the time since boot, for the next reading."""


def first_lead_ms(passed_ms: int) -> int:
    """Return the lead before the first reading.

    Args:
        passed_ms: a time that has passed. A clock that is behind it was set back in the meantime, by at least the difference.
    """
    now_ms, lead_ms = _read()
    return lead_ms + max(0, passed_ms - now_ms)


def read_clock(lead_ms: int) -> ClockReading:
    """Read the wall clock, and compare its lead with an earlier one."""
    now_ms, found_ms = _read()
    set_by_ms = found_ms - lead_ms
    if abs(set_by_ms) <= _SMALLEST_STEP_MS:
        return ClockReading(now_ms, 0, lead_ms)
    return ClockReading(now_ms, set_by_ms, found_ms)


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
