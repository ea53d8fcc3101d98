"""Wake-ups of the deciding thread. A wake-up is only a reason, without data, so that several with the same reason become one."""

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
"""Reasons for which a turn reads all cgroups, including those without reported changes."""
READ_SOURCES = frozenset({WakeUpReason.START, WakeUpReason.MANIFESTS, WakeUpReason.TIMER, WakeUpReason.RELOAD})
"""Reasons for which a turn reads the sources of pods. For all other reasons, it uses the result of the last reading."""
READ_MACHINE = frozenset({WakeUpReason.START, WakeUpReason.HOTPLUG, WakeUpReason.TIMER, WakeUpReason.RELOAD})
"""Reasons for which a turn reads the machine."""


class Rescans:
    """Timer that adds the reason TIMER once per period, even if the deciding thread is often woken for other reasons and so never waits
    that long.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_seconds = clock()

    def add_timer(self, reasons: frozenset[WakeUpReason], period_seconds: float) -> frozenset[WakeUpReason]:
        """Return the reasons, and TIMER with them if a period has passed since the last TIMER."""
        now = self._clock()
        if now - self._last_seconds >= period_seconds:
            reasons |= {WakeUpReason.TIMER}
        if WakeUpReason.TIMER in reasons:
            self._last_seconds = now
        return reasons


class Wakeups:
    """Reasons for the next turn. Any thread or signal handler may add reasons, and the deciding thread takes them all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._reasons: set[WakeUpReason] = set()
        self._clock = clock

    def wake(self, reason: WakeUpReason) -> None:
        with self._condition:
            self._reasons.add(reason)
            self._condition.notify()

    def wait(self, timeout_seconds: float) -> frozenset[WakeUpReason]:
        """Wait until there is a reason, and take all reasons. If there is none before the timeout, return only TIMER."""
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
