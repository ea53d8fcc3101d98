"""Rendering of a metrics snapshot in the Prometheus text format, by the package prometheus-client.

To save memory, daemon/reports/exposition.py imports this module only when the first request arrives.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import accumulate

from nodeagent.core.admission import resource_kinds
from nodeagent.core.metrics.agent_metrics import BUCKETS, METRICS, find_old_name
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import MetricSpec
from nodeagent.core.metrics.totals import Distribution, MetricsSnapshot
from nodeagent.lean_imports import with_placeholders

# prometheus-client's HTTP servers and clients, of which nodeagent uses none, need these modules; they take 6 MiB with OpenSSL
with with_placeholders("http.server", "ssl", "urllib.request", "wsgiref.simple_server"):
    from prometheus_client import ProcessCollector, generate_latest
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

_TOTAL = "_total"


def render_metrics(snapshot: MetricsSnapshot, read: Mapping[Series, float], *, aliases: bool) -> bytes:
    """Render a snapshot, series read from the kernel, and this process's own metrics as text.

    Args:
        snapshot: counters, gauges and distributions.
        read: series that aren't in the snapshot.
        aliases: whether kubelet's metrics also appear without their prefix `kubelet_`.
    """
    return generate_latest(_Published(snapshot, read, aliases=aliases))


class _UnsuffixedCounter(str):
    """Metric type `counter`, disguised so that prometheus-client doesn't append `_total` to the metric's name. kubelet has counters without
    this suffix.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


class _Published(Collector):
    def __init__(self, snapshot: MetricsSnapshot, read: Mapping[Series, float], *, aliases: bool) -> None:
        self.snapshot = snapshot
        self.read = read
        self.aliases = aliases

    def collect(self) -> Iterable[Metric]:
        samples = defaultdict[str, list[tuple[Series, float]]](list)
        for one, value in (
            *self.snapshot.counters.items(),
            *self.snapshot.gauges.items(),
            *self.read.items(),
        ):
            samples[one.name].append((one, value))
        for spec in (*METRICS, *(spec for kind in resource_kinds.RESOURCES for spec in kind.metrics)):
            alias = find_old_name(spec.name) if self.aliases else None
            for name in (spec.name,) if alias is None else (spec.name, alias):
                if spec.kind == "histogram":
                    yield _make_histogram(spec, name, self.snapshot.distributions[spec.name])
                else:
                    yield _make_family(spec, name, samples[spec.name])
        yield from ProcessCollector(registry=None).collect()


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
