"""How long to wait for a guest: in its own seconds, which an emulator, and whoever else uses the processors, make longer than ours.

A small job that is always the same says how slow the guest is: a few times once it is there, and again now and then while something is
waited for. So a wait is as patient as this guest needs just then, and no more.
"""

import time
from collections import deque
from collections.abc import Callable

LONGEST_SECONDS = 180.0
"""Of ours, for any one wait, whatever the guest is like; a wait for what takes longer on a real machine is as long as that."""
SHORTEST_SECONDS = 30.0
"""Of ours: back-offs, grace periods and the agent's periods go by the clock on the fastest machine, too."""
MEASURED_EVERY_SECONDS = 10.0
LOOK_SECONDS = 2.0
"""So often whoever waits for an end should ask whether the wait is over."""
JOB = (
    "sh",
    "-c",
    "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done",
)
"""Instructions, and programs that are started: what commands and pods need."""
_ON_A_REAL_MACHINE_SECONDS = 0.025
_SAMPLES = 5
"""Of the last ones the slowest counts: one alone may have met a moment when nobody else wanted the processors."""

Clock = Callable[[], float]


class Pace:
    """How slow a guest is.

    Args:
        measure: does the job there, and gives the seconds (of ours) that it took.
        clock: our seconds.

    """

    def __init__(self, measure: Callable[[], float], clock: Clock = time.monotonic) -> None:
        self._measure = measure
        self._clock = clock
        self._samples: deque[float] = deque((measure() for _ in range(_SAMPLES)), maxlen=_SAMPLES)
        self._measured_at = clock()

    def slowness(self) -> float:
        """How many of our seconds one of the guest's takes; measured again if that is due."""
        if self._clock() - self._measured_at >= MEASURED_EVERY_SECONDS:
            self._samples.append(self._measure())
            self._measured_at = self._clock()
        return max(1.0, max(self._samples) / _ON_A_REAL_MACHINE_SECONDS)

    def wait(self, seconds: float) -> "Wait":
        """Begin to wait for what surely takes no longer than that on a real machine."""
        return Wait(self, seconds, self._clock)


class Wait:
    """One wait, made by `Pace.wait`."""

    def __init__(self, pace: Pace, seconds: float, clock: Clock) -> None:
        self._pace = pace
        self._seconds = seconds
        self._clock = clock
        self._began = self._looked = clock()
        self._had = 0.0
        """What the guest has had since, in its own seconds."""

    def is_over(self) -> bool:
        """Whether the guest has had its time, or we ours."""
        slowness = self._pace.slowness()
        now = self._clock()
        self._had += (now - self._looked) / slowness
        self._looked = now
        lasted = self.lasted_seconds
        return lasted >= max(LONGEST_SECONDS, self._seconds) or (
            lasted >= SHORTEST_SECONDS and self._had >= self._seconds
        )

    @property
    def lasted_seconds(self) -> float:
        """Of ours, when it was last looked at."""
        return self._looked - self._began

    def __str__(self) -> str:
        """Say how long it was."""
        return f"{self.lasted_seconds:.0f} s, {self._had:.0f} s of the guest's own time"
