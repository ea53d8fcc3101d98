"""Metrics of CPU throttling and pressure (PSI) of the containers with exclusive CPUs.

Their cgroup files are read during a scrape, at most once a second.
"""

import time
from collections.abc import Callable, Iterator, Mapping

from nodeagent.core.metrics import agent_metrics as names
from nodeagent.core.metrics.deltas import Series
from nodeagent.daemon.reports.cpu_counters import Holder
from nodeagent.edge.kernel.usage import read_pressure
from nodeagent.formats.kernel.pressure import parse_pressure_us, parse_throttled_periods

_READ_AGAIN_SECONDS = 1.0


class ContainerPressure:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held: tuple[Mapping[Holder, str], Callable[[str], str]] = {}, str
        self._read_at = -_READ_AGAIN_SECONDS
        self._read_of: Mapping[Holder, str] = {}
        self._values: Mapping[Series, float] = {}

    def follow(self, paths: Mapping[Holder, str], locate: Callable[[str], str] = str) -> None:
        """Set the containers to measure, with the paths of their cgroups.

        The deciding thread calls this method and doesn't change `paths` afterwards, so the serving thread may read it without a lock.
        `locate` returns the directory of a cgroup path.
        """
        self._held = paths, locate

    def values(self) -> Mapping[Series, float]:
        """Return the counters. They are read at most once a second, and only the serving thread may call this method."""
        (paths, locate), now = self._held, self._clock()
        if now >= self._read_at + _READ_AGAIN_SECONDS or paths.keys() != self._read_of.keys():
            self._read_at, self._read_of = now, paths
            self._values = {
                series: value
                for holder, path in paths.items()
                for series, value in _read_container(holder, locate(path))
            }
        return self._values


def _read_container(holder: Holder, path: str) -> Iterator[tuple[Series, float]]:
    """Yield the counters of one container, except those whose files the kernel doesn't provide."""
    of_container = (("container", holder.container), ("namespace", holder.namespace), ("pod", holder.pod))
    text = read_pressure(path)
    periods = parse_throttled_periods(text.cpu_stat or "")
    if periods is not None:
        yield Series(names.THROTTLED_PERIODS, of_container), periods
    for resource, content in text.by_resource.items():
        for share, waited_us in parse_pressure_us(content).items():
            labels = (*of_container, ("resource", resource), ("share", share))
            yield Series(names.PRESSURE, labels), waited_us / 1_000_000
