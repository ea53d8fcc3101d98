"""Rendering of the metrics, with a cache of the last text."""

import time
from collections.abc import Callable, Mapping

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.totals import MetricsSnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the text format of Prometheus, the only format that is supported. kubelet uses it, too.

OpenMetrics can't be used, because it requires that names of counters end in `_total`. Two of kubelet's counters don't.
"""
_CACHE_SECONDS = 1.0
"""Seconds for which a rendered text is reused while no new snapshot is published, so that many scrapes cost
only one rendering per second.
"""

Read = Callable[[], Mapping[Series, float]]
"""Function that reads series which aren't in the snapshot, such as the kernel's counters. The rendering thread calls it."""


class Exposition:
    """Renderer of the latest metrics snapshot. One thread may publish snapshots while another thread renders them.

    Args:
        snapshot: the first snapshot.
        aliases: whether to add metric aliases (see `publish`).
        read: function that reads the series that aren't in snapshots. Each rendering calls it once.
    """

    def __init__(self, snapshot: MetricsSnapshot, *, aliases: bool = True, read: Read = dict) -> None:
        self._read = read
        self.publish(snapshot, aliases=aliases)
        self._text = b""
        self._text_of: tuple[MetricsSnapshot, bool] | None = None
        self._text_at = 0.0

    def publish(self, snapshot: MetricsSnapshot, *, aliases: bool = True) -> None:
        """Replace the snapshot. With `aliases`, kubelet's metrics also appear without the prefix `kubelet_` (`metricsAliases`)."""
        self._published = (snapshot, aliases)

    def text(self) -> bytes:
        """Render the latest snapshot in the format of CONTENT_TYPE. Only the serving thread may call this method."""
        published, now = self._published, time.monotonic()
        if published is not self._text_of or now >= self._text_at + _CACHE_SECONDS:
            from nodeagent.edge.observability.metrics import render_metrics  # noqa: PLC0415 - takes 1 MiB

            snapshot, aliases = published
            self._text = render_metrics(snapshot, self._read(), aliases=aliases)
            self._text_of, self._text_at = published, now
        return self._text
