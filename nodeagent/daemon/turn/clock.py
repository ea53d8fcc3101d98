"""Wall clock: its time, and its lead over the time since boot. A change of the lead shows that the clock was set."""

import time
from typing import NamedTuple

SMALLEST_STEP_MS = 1_000
"""Smallest change of the lead, in milliseconds, that counts as setting the clock. Smaller differences are measurement errors, because the
two clocks can't be read at the same instant. Several small steps count once their sum reaches this value.
"""
_READING_MS = 100


class ClockReading(NamedTuple):
    now_ms: int
    set_by_ms: int
    """Milliseconds by which the wall clock was set since the earlier reading. 0 means that it wasn't set."""
    lead_ms: int
    """Wall-clock time minus time since boot, in milliseconds. Pass it to the next reading."""


def read_first_lead_ms(passed_ms: int) -> int:
    """Return the lead with which the first reading is compared.

    Args:
        passed_ms: wall-clock time that has certainly passed, such as the latest in the state. If the clock shows an earlier time now, it
            was set back at least by the difference.
    """
    now_ms, lead_ms = read_clocks()
    return lead_ms + max(0, passed_ms - now_ms)


def read_clock(lead_ms: int) -> ClockReading:
    """Read the wall clock, and compare its lead with an earlier one to find out whether the clock was set."""
    now_ms, found_ms = read_clocks()
    set_by_ms = found_ms - lead_ms
    if abs(set_by_ms) <= SMALLEST_STEP_MS:
        return ClockReading(now_ms, 0, lead_ms)
    return ClockReading(now_ms, set_by_ms, found_ms)


def read_slept_ms() -> int:
    """Return how long the machine has slept since boot, in milliseconds. Readings that differ by less than SMALLEST_STEP_MS are equal."""
    return read_boot_ms() - time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000


def read_clocks() -> tuple[int, int]:
    """Return the wall-clock time, and its lead over the time since boot, in milliseconds.

    The time since boot is CLOCK_BOOTTIME. It can't be set, includes sleep, and NTP adjusts its rate like the wall clock's
    (clock_gettime(2)).
    """
    while True:
        before_ms, now_ms, after_ms = read_boot_ms(), time.time_ns() // 1_000_000, read_boot_ms()
        # if more time has passed, the process was delayed between the readings, and the clocks are read again
        if after_ms - before_ms <= _READING_MS:
            return now_ms, now_ms - after_ms


def read_boot_ms() -> int:
    """Return the milliseconds since boot, including sleep."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
