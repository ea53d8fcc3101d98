"""Totals of the metrics, kept in memory by the deciding thread. Other threads get an immutable snapshot. This module doesn't use a metrics
library.
"""

import bisect
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec import Struct, field

from nodeagent.core.metrics.agent_metrics import BUCKETS, METRICS, OTHER, list_start_series, make_series
from nodeagent.core.metrics.deltas import MetricDelta, Series

_SPECS = {spec.name: spec for spec in METRICS}
_GAUGES = {name for name, spec in _SPECS.items() if spec.kind == "gauge"}
_START_GAUGES = dict.fromkeys(list_start_series("gauge"), 0)


class Distribution(Struct, frozen=True):
    """Values of one histogram without labels."""

    counts: tuple[int, ...]
    """Number of observations in each bucket (not cumulative). The last bucket has the observations above all bounds."""
    total: float
    """Sum of the observed values, in the metric's unit."""


class MetricsSnapshot(Struct, frozen=True):
    """All exposed metrics at one moment. The mappings are private copies that never change."""

    counters: Mapping[Series, int]
    gauges: Mapping[Series, int]
    distributions: Mapping[str, Distribution]
    """Histograms by the metric's name."""


class _Histogram(Struct):
    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0


def _histograms() -> dict[str, _Histogram]:
    return {name: _Histogram(bounds, [0] * (len(bounds) + 1)) for name, bounds in BUCKETS.items()}


class MetricTotals(Struct):
    _counters: dict[Series, int] = field(default_factory=lambda: dict.fromkeys(list_start_series("counter"), 0))
    _histograms: dict[str, _Histogram] = field(default_factory=_histograms)

    def add(self, deltas: Iterable[MetricDelta]) -> None:
        """Add the changes of metrics that decisions returned. Gauges are left out, because their values come from the state (D4)."""
        for delta in deltas:
            if _SPECS[delta.series.name].kind == "counter":
                assert not delta.absolute
                self._counters[delta.series] = self._counters.get(delta.series, 0) + delta.amount

    def count(self, name: str, *values: str, amount: int = 1) -> None:
        """Add to one of the agent's own counters. A label value that isn't listed for the label counts as `other`."""
        spec = _SPECS[name]
        wanted = make_series(spec, *values)
        if wanted not in self._counters:
            wanted = make_series(spec, *(OTHER for _ in values))
        self._counters[wanted] += amount

    def observe(self, name: str, value: float) -> None:
        """Add an observation to a histogram. The end of the metric's name is the unit of the value."""
        histogram = self._histograms[name]
        histogram.counts[bisect.bisect_left(histogram.bounds, value)] += 1
        histogram.total += value

    def snapshot(self, gauges: Mapping[Series, int]) -> MetricsSnapshot:
        """Return an immutable snapshot of the totals, with the gauges from the state. Missing gauges are 0."""
        assert {one.name for one in gauges} & _SPECS.keys() <= _GAUGES
        return self._show(MappingProxyType({**_START_GAUGES, **gauges}))

    def renew(self, snapshot: MetricsSnapshot) -> MetricsSnapshot:
        """Return a snapshot of the present totals, with the gauges of the given earlier snapshot."""
        return self._show(snapshot.gauges)

    def _show(self, gauges: Mapping[Series, int]) -> MetricsSnapshot:
        return MetricsSnapshot(
            MappingProxyType(dict(self._counters)),
            gauges,
            MappingProxyType({n: Distribution(tuple(t.counts), t.total) for n, t in self._histograms.items()}),
        )
