"""Changes of kubelet's metrics. A decision returns such changes as data, and its caller adds them to the totals. No metrics library is
used.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Series(NamedTuple):
    """One time series: the metric's name as in kubelet, and its labels, sorted by name."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if not self.labels:
            return self.name
        return self.name + "{" + ",".join(f'{key}="{value}"' for key, value in self.labels) + "}"


class MetricDelta(NamedTuple):
    """Change of one time series. `amount` is added to the value or, if `absolute` is true, replaces it."""

    series: Series
    amount: int = 1
    absolute: bool = False


def apply_deltas(totals: dict[Series, int], deltas: Iterable[MetricDelta]) -> None:
    """Apply metric changes to `totals`, which is modified in place."""
    for delta in deltas:
        totals[delta.series] = delta.amount if delta.absolute else totals.get(delta.series, 0) + delta.amount
