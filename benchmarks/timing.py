"""Time on a machine that others use too: processor time, each run beside the calibration loop, the median of what that gives."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

REFERENCE_LOOP_MS = 11.8
"""What the loop takes on the machine on which kubelet was measured and for which the goals are."""

ROUNDS = 60_000
_PARTS = 20
_MASK = 2**64 - 1


def loop() -> Iterator[None]:
    """Multiply, mask, xor, count bits, store: what deciding on bitmasks consists of. Pauses after each of its parts."""
    stored: dict[int, int] = {}
    x = 1
    for begin in range(0, ROUNDS, ROUNDS // _PARTS):
        for i in range(begin, begin + ROUNDS // _PARTS):
            x = (x * 6364136223846793005 + i) & _MASK
            x ^= i
            stored[i & 1023] = x.bit_count()
        yield


@dataclass(frozen=True)
class Timing:
    """What a piece of work takes.

    Attributes:
        ms: on this machine.
        calibrated_ms: on the reference machine, as the loop that ran just before and just after tells.

    """

    ms: float
    calibrated_ms: float


@dataclass
class Clock:
    """Measures, and keeps what the calibration loop took beside it."""

    loops_ms: list[float] = field(default_factory=list)

    def calibrate(self) -> float:
        """Run the loop: its median part, times their number, as a median of runs is what it is compared with."""
        going = loop()
        self.loops_ms.append(statistics.median(spent_ms(lambda: next(going)) for _ in range(_PARTS)) * _PARTS)
        return self.loops_ms[-1]

    def time(self, work: Callable[[], object], repeats: int = 5) -> Timing:
        """Time some runs of the work."""
        return self.time_runs(lambda: [spent_ms(work)], repeats)

    def time_runs(self, run: Callable[[], Iterable[float]], repeats: int = 5) -> Timing:
        """Time some runs that give times of their own: the median of each counts, in ms."""
        return self.time_each([run], repeats)[0]

    def time_each(self, runs: Sequence[Callable[[], Iterable[float]]], repeats: int = 5) -> list[Timing]:
        """Do the same with several that are compared with each other: they take turns."""
        timings: list[list[Timing]] = [[] for _ in runs]
        before = self.calibrate()
        for _ in range(repeats):
            for run, found in zip(runs, timings, strict=True):
                gc.collect()
                ms = statistics.median(run())
                after = self.calibrate()
                found.append(Timing(ms, ms * REFERENCE_LOOP_MS * 2 / (before + after)))
                before = after
        return [
            Timing(statistics.median(one.ms for one in found), statistics.median(one.calibrated_ms for one in found))
            for found in timings
        ]


def spent_ms(work: Callable[[], object]) -> float:
    """Processor time of this thread: what others take of the machine meanwhile isn't in it."""
    begin = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - begin) / 1e6


def elapsed_ms(work: Callable[[], object]) -> float:
    """Time on the clock, for what happens in other processes."""
    begin = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begin) / 1e6
