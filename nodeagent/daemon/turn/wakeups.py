"""Wake-ups of the deciding thread. A wake-up consists only of a reason, so equal wake-ups are merged."""

import enum
import threading
import time
from collections.abc import Callable


class WakeUpReason(enum.Enum):
    START = "start"
    MANIFESTS = "manifests"
    RUNS = "runs"
    HOTPLUG = "hotplug"
    CGROUPS = "cgroups"
    REQUEST = "request"
    JOBS = "jobs"
    RUNTIME = "runtime"
    DEVICES = "devices"
    CONFIGURATION = "configuration"
    TIMER = "timer"
    RELOAD = "reload"
    STOP = "stop"


READ_EVERYTHING = frozenset({WakeUpReason.START, WakeUpReason.HOTPLUG, WakeUpReason.RELOAD})
"""Reasons for which a turn reads all cgroups again, even unchanged cgroups."""
READ_SOURCES = frozenset({WakeUpReason.START, WakeUpReason.MANIFESTS, WakeUpReason.TIMER, WakeUpReason.RELOAD})
"""Reasons for which a turn reads the sources of pods again. A turn with only other reasons uses the last result."""
READ_MACHINE = frozenset({WakeUpReason.START, WakeUpReason.HOTPLUG, WakeUpReason.TIMER, WakeUpReason.RELOAD})
"""Reasons for which a turn reads the machine again."""


class Rescans:
    """Timer that adds the reason TIMER once per period, even if other reasons wake the thread often."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_seconds = clock()

    def add_timer(self, reasons: frozenset[WakeUpReason], period_seconds: float) -> frozenset[WakeUpReason]:
        """Return the reasons of the next turn, with TIMER if the period has passed without it."""
        now = self._clock()
        if now - self._last_seconds >= period_seconds:
            reasons |= {WakeUpReason.TIMER}
        if WakeUpReason.TIMER in reasons:
            self._last_seconds = now
        return reasons


class Wakeups:
    """Set of reasons for the next turn. Any thread or signal handler can add reasons; the deciding thread takes them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._reasons: set[WakeUpReason] = set()
        self._clock = clock

    def wake(self, reason: WakeUpReason) -> None:
        with self._condition:
            self._reasons.add(reason)
            self._condition.notify()

    def wait(self, timeout_seconds: float) -> frozenset[WakeUpReason]:
        """Wait for a reason, and take all reasons. After the timeout, the reason is TIMER."""
        deadline = self._clock() + timeout_seconds
        with self._condition:
            while not self._reasons:
                left = deadline - self._clock()
                if left <= 0:
                    return frozenset({WakeUpReason.TIMER})
                self._condition.wait(left)
            reasons = frozenset(self._reasons)
            self._reasons.clear()
            return reasons
