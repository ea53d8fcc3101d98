"""Last snapshot of the metrics, and its rendered text."""

import time
from collections.abc import Callable, Mapping

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.totals import MetricsSnapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of the only supported format, which kubelet also uses.

OpenMetrics isn't supported, because it can't express two of kubelet's counters: their names don't end in `_total`.
"""
_CACHE_SECONDS = 1.0
"""Seconds for which a rendered text is reused if no new snapshot was published. Many scrapes then cost only one rendering per second."""

Read = Callable[[], Mapping[Series, float]]
"""Function that reads series from the kernel, in the thread that renders the text."""


class Exposition:
    """Renderer of the last snapshot. One thread may publish snapshots while another asks for the text.

    Args:
        snapshot: the first snapshot.
        aliases: as in `publish`.
        read: function that reads the series that aren't in snapshots, called once per rendering.
    """

    def __init__(self, snapshot: MetricsSnapshot, *, aliases: bool = True, read: Read = dict) -> None:
        self._read = read
        self.publish(snapshot, aliases=aliases)
        self._text = b""
        self._text_of: tuple[MetricsSnapshot, bool] | None = None
        self._text_at = 0.0

    def publish(self, snapshot: MetricsSnapshot, *, aliases: bool = True) -> None:
        """Replace the snapshot. With `aliases`, metrics also have names without kubelet's prefix (`metricsAliases`)."""
        self._published = (snapshot, aliases)

    def text(self) -> bytes:
        """Return the metrics in the format of CONTENT_TYPE. Only one thread may call this method."""
        published, now = self._published, time.monotonic()
        if published is not self._text_of or now >= self._text_at + _CACHE_SECONDS:
            from nodeagent.edge.observability.metrics import render_metrics  # noqa: PLC0415 - takes 6 MiB

            snapshot, aliases = published
            self._text = render_metrics(snapshot, self._read(), aliases=aliases)
            self._text_of, self._text_at = published, now
        return self._text
