"""Time on a machine that others use too: short runs, many of them, the best one, and the calibration loop in between."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

REFERENCE_LOOP_MS = 11.8
"""What the loop takes on the machine on which kubelet was measured and for which the goals are."""

ROUNDS = 60_000
_MASK = 2**64 - 1


def loop() -> dict[int, int]:
    """Multiply, mask, xor, count bits, store: what deciding on bitmasks consists of."""
    stored: dict[int, int] = {}
    x = 1
    for i in range(ROUNDS):
        x = (x * 6364136223846793005 + i) & _MASK
        x ^= i
        stored[i & 1023] = x.bit_count()
    return stored


@dataclass
class Clock:
    """Measures, and keeps what the calibration loop took beside it."""

    loops_ms: list[float] = field(default_factory=list)

    def calibrate(self, times: int = 3) -> None:
        for _ in range(times):
            self.loops_ms.append(elapsed_ms(loop))

    @property
    def factor(self) -> float:
        """Milliseconds here × this = milliseconds on the reference machine."""
        return REFERENCE_LOOP_MS / min(self.loops_ms)

    def best(self, work: Callable[[], object], repeats: int = 5) -> float:
        """Give the shortest of some runs, in ms."""
        return self.best_of(lambda: [elapsed_ms(work)], repeats)

    def best_of(self, run: Callable[[], Iterable[float]], repeats: int = 5) -> float:
        """Give the lowest of the runs' medians, in ms: a run's own spread counts, others' use of the machine doesn't."""
        return self.best_of_each([run], repeats)[0]

    def best_of_each(self, runs: Sequence[Callable[[], Iterable[float]]], repeats: int = 5) -> list[float]:
        """The same of several that are compared with each other: they take turns."""
        medians: list[list[float]] = [[] for _ in runs]
        for _ in range(repeats):
            for run, found in zip(runs, medians, strict=True):
                self.calibrate(1)
                gc.collect()
                found.append(statistics.median(run()))
        return [min(found) for found in medians]


def elapsed_ms(work: Callable[[], object]) -> float:
    begin = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - begin) / 1e6
