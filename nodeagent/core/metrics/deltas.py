"""Changes of the values of kubelet's metrics. A decision returns such changes as data, and its caller adds them to the totals. This
module doesn't use a metrics library.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Series(NamedTuple):
    """One series: kubelet's exact name and its labels, sorted by label name."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if not self.labels:
            return self.name
        return self.name + "{" + ",".join(f'{key}="{value}"' for key, value in self.labels) + "}"


class MetricDelta(NamedTuple):
    """Change of one series. `amount` is added to the value, or replaces the value if `absolute` is set."""

    series: Series
    amount: int = 1
    absolute: bool = False


def apply_deltas(totals: dict[Series, int], deltas: Iterable[MetricDelta]) -> None:
    """Apply changes of metrics to `totals` in place."""
    for delta in deltas:
        totals[delta.series] = delta.amount if delta.absolute else totals.get(delta.series, 0) + delta.amount
