"""The metrics in Prometheus' text format, rendered from the last snapshot by prometheus-client."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from nodeagent.core.admission import resource_kinds
from nodeagent.core.metrics.agent_metrics import BUCKETS, METRICS, find_old_name
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MetricSpec
from nodeagent.core.metrics.totals import Distribution, MetricsSnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the only served format, which kubelet serves, too. OpenMetrics can't express kubelet's two counters whose names don't end
in `_total`.
"""
_CACHE_SECONDS = 1.0
"""Time for which a text is served again if no new snapshot was published, so that many scrapes cost one rendering per second."""
_TOTAL = "_total"


Read = Callable[[], Mapping[Series, float]]
"""Function that reads series from the kernel. It is called in the thread that asks for the text."""


class _UnsuffixedCounter(str):
    """The type `counter`, disguised so that prometheus-client doesn't append `_total` to the metric's name."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


class _Published(Collector):
    def __init__(self, snapshot: MetricsSnapshot, process: ProcessCollector, read: Read, *, aliases: bool) -> None:
        self.snapshot = snapshot
        self.read = read
        self.aliases = aliases
        self.process = process

    def collect(self) -> Iterable[Metric]:
        samples = defaultdict[str, list[tuple[Series, float]]](list)
        for one, value in (
            *self.snapshot.counters.items(),
            *self.snapshot.gauges.items(),
            *self.read().items(),
        ):
            samples[one.name].append((one, value))
        for spec in (*METRICS, *(spec for kind in resource_kinds.RESOURCES for spec in kind.metrics)):
            alias = find_old_name(spec.name) if self.aliases else None
            for name in (spec.name,) if alias is None else (spec.name, alias):
                if spec.kind == "histogram":
                    yield _make_histogram(spec, name, self.snapshot.distributions[spec.name])
                else:
                    yield _make_family(spec, name, samples[spec.name])
        yield from self.process.collect()


def _make_family(spec: MetricSpec, name: str, samples: list[tuple[Series, float]]) -> Metric:
    if spec.kind == "counter" and name.endswith(_TOTAL):
        family = Metric(name.removesuffix(_TOTAL), spec.help, "counter")
    else:
        family = Metric(name, spec.help, "gauge")
        if spec.kind == "counter":
            family.type = _UnsuffixedCounter("counter")
    for one, value in sorted(samples, key=lambda sample: sample[0].labels):
        family.add_sample(name, dict(one.labels), value)
    return family


def _make_histogram(spec: MetricSpec, name: str, distribution: Distribution) -> Metric:
    family = Metric(name, spec.help, "histogram")
    bounds = [*(str(bound) for bound in BUCKETS[spec.name]), "+Inf"]
    for bound, count in zip(bounds, accumulate(distribution.counts), strict=True):
        family.add_sample(f"{name}_bucket", {"le": bound}, count)
    family.add_sample(f"{name}_count", {}, sum(distribution.counts))
    family.add_sample(f"{name}_sum", {}, distribution.total)
    return family


class Exposition:
    """Renderer of the last snapshot. One thread may publish snapshots while another asks for the text.

    Args:
        snapshot: the first snapshot.
        aliases: as in `publish`.
        read: reads the series that aren't in snapshots, once per rendering.
    """

    def __init__(self, snapshot: MetricsSnapshot, *, aliases: bool = True, read: Read = dict) -> None:
        self._read = read
        self._process = ProcessCollector(registry=None)
        self.publish(snapshot, aliases=aliases)
        self._text = b""
        self._text_of: _Published | None = None
        self._text_at = 0.0

    def publish(self, snapshot: MetricsSnapshot, *, aliases: bool = True) -> None:
        """Replace the snapshot. `aliases` tells whether metrics also have names without kubelet's prefix (`metricsAliases`)."""
        self._published = _Published(snapshot, self._process, self._read, aliases=aliases)

    def text(self) -> bytes:
        """Return the metrics in the format of CONTENT_TYPE. Only one thread may call this method."""
        published, now = self._published, time.monotonic()
        if published is not self._text_of or now >= self._text_at + _CACHE_SECONDS:
            self._text = generate_latest(published)
            self._text_of, self._text_at = published, now
        return self._text
