"""Wall clock: its time, and its lead (the wall clock's time minus the time since boot). If the lead changes, the clock was set."""

import time
from typing import NamedTuple

SMALLEST_STEP_MS = 1_000
"""Smallest clock change, in milliseconds, that counts. Smaller changes are ignored until they add up, because the two clocks aren't read at
the same instant.
"""
_READING_MS = 100


class ClockReading(NamedTuple):
    now_ms: int
    set_by_ms: int
    """Change of the wall clock since the earlier reading, in milliseconds."""
    lead_ms: int
    """Lead of the wall clock over the time since boot, in milliseconds, for the next reading."""


def read_first_lead_ms(passed_ms: int) -> int:
    """Return the lead to compare with the first reading.

    Args:
        passed_ms: a time that is known to be in the past. If the wall clock is behind this time, the clock was set back by at least the
            difference.
    """
    now_ms, lead_ms = read_clocks()
    return lead_ms + max(0, passed_ms - now_ms)


def read_clock(lead_ms: int) -> ClockReading:
    """Read the wall clock, and compare its lead with the lead of an earlier reading."""
    now_ms, found_ms = read_clocks()
    set_by_ms = found_ms - lead_ms
    if abs(set_by_ms) <= SMALLEST_STEP_MS:
        return ClockReading(now_ms, 0, lead_ms)
    return ClockReading(now_ms, set_by_ms, found_ms)


def read_slept_ms() -> int:
    """Return the total time of sleep since boot, in milliseconds. Without a sleep, two readings differ by less than SMALLEST_STEP_MS."""
    return read_boot_ms() - time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000


def read_clocks() -> tuple[int, int]:
    """Return the wall clock's time and its lead over the time since boot, both in milliseconds.

    CLOCK_BOOTTIME can't be set, runs while the machine sleeps, and is slowed by NTP like the wall clock (clock_gettime(2)).
    """
    while True:
        before_ms, now_ms, after_ms = read_boot_ms(), time.time_ns() // 1_000_000, read_boot_ms()
        # if more time has passed, the process was delayed between the readings, and the clocks are read again
        if after_ms - before_ms <= _READING_MS:
            return now_ms, now_ms - after_ms


def read_boot_ms() -> int:
    """Return the milliseconds since boot, including sleep."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
