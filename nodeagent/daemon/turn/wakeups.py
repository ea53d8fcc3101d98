"""Wake-ups of the deciding thread: each is a reason to look again and carries no data, so any number can coalesce."""

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
    TIMER = "timer"
    RELOAD = "reload"
    STOP = "stop"


READ_SOURCES = frozenset({WakeUpReason.START, WakeUpReason.MANIFESTS, WakeUpReason.TIMER, WakeUpReason.RELOAD})
"""Reasons for which sources of pods are read anew; a turn for any other takes what they had at the last look."""
READ_MACHINE = frozenset({WakeUpReason.START, WakeUpReason.HOTPLUG, WakeUpReason.TIMER, WakeUpReason.RELOAD})
"""Reasons for which the machine is discovered anew."""


class Rescans:
    """Makes sure that TIMER comes in every period, however often something else wakes the thread in between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_seconds = clock()

    def among(self, reasons: frozenset[WakeUpReason], period_seconds: float) -> frozenset[WakeUpReason]:
        """Return the reasons of the turn that is about to begin; TIMER is added if there was none for a period."""
        now = self._clock()
        if now - self._last_seconds >= period_seconds:
            reasons |= {WakeUpReason.TIMER}
        if WakeUpReason.TIMER in reasons:
            self._last_seconds = now
        return reasons


class Wakeups:
    """A set of reasons: any thread (or a signal handler of the deciding one) adds to it, and the deciding thread empties it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._reasons: set[WakeUpReason] = set()
        self._clock = clock

    def wake(self, reason: WakeUpReason) -> None:
        with self._condition:
            self._reasons.add(reason)
            self._condition.notify()

    def wait(self, timeout_seconds: float) -> frozenset[WakeUpReason]:
        """Wait for a reason, and take all of them. If the time ends without one, the reason is TIMER."""
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
