"""Totals of all metrics, which the deciding thread keeps in memory. Other threads get an immutable snapshot. No metrics library is used."""

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
    """Counts of one histogram. Histograms have no labels."""

    counts: tuple[int, ...]
    """Number of observations in each bucket (not cumulative). The last bucket counts observations above all bounds."""
    total: float
    """Sum of the observed values, in the metric's unit."""


class MetricsSnapshot(Struct, frozen=True):
    """Values of all metrics at one moment. The mappings never change."""

    counters: Mapping[Series, int]
    gauges: Mapping[Series, int]
    distributions: Mapping[str, Distribution]
    """Histograms by metric name."""


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
        """Add metric changes that decisions returned. Changes of gauges are ignored, because gauges are computed from the state (D4)."""
        for delta in deltas:
            if _SPECS[delta.series.name].kind == "counter":
                assert not delta.absolute
                self._counters[delta.series] = self._counters.get(delta.series, 0) + delta.amount

    def count(self, name: str, *values: str, amount: int = 1) -> None:
        """Add `amount` to one of the agent's counters. `values` are the label values. If one of them isn't in the fixed set of its label,
        all count as `other`.
        """
        spec = _SPECS[name]
        wanted = make_series(spec, *values)
        if wanted not in self._counters:
            wanted = make_series(spec, *(OTHER for _ in values))
        self._counters[wanted] += amount

    def observe(self, name: str, value: float) -> None:
        """Add an observation to a histogram. The value is in the unit at the end of the metric's name."""
        histogram = self._histograms[name]
        histogram.counts[bisect.bisect_left(histogram.bounds, value)] += 1
        histogram.total += value

    def snapshot(self, gauges: Mapping[Series, int]) -> MetricsSnapshot:
        """Return an immutable snapshot of the totals and of these gauges. Gauges that exist from the start and aren't given are 0."""
        assert {one.name for one in gauges} & _SPECS.keys() <= _GAUGES
        return self._show(MappingProxyType({**_START_GAUGES, **gauges}))

    def renew(self, snapshot: MetricsSnapshot) -> MetricsSnapshot:
        """Return a snapshot of the present totals, with the gauges of an earlier snapshot."""
        return self._show(snapshot.gauges)

    def _show(self, gauges: Mapping[Series, int]) -> MetricsSnapshot:
        return MetricsSnapshot(
            MappingProxyType(dict(self._counters)),
            gauges,
            MappingProxyType({n: Distribution(tuple(t.counts), t.total) for n, t in self._histograms.items()}),
        )
