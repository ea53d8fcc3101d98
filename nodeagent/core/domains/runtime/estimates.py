"""Inverse of kubelet's conversions. From a cgroup's values, this module infers the requests and limits that may have produced them.

Each function returns the range of all possible amounts. kubelet's functions are MilliCPUToShares, MilliCPUToQuota (pkg/kubelet/cm) and
GetContainerOOMScoreAdjust (pkg/kubelet/qos).
"""

from msgspec import Struct

from nodeagent.core.model.cgroup import MIN_QUOTA_US

MIN_SHARES, MAX_SHARES = 2, 262_144
_SHARES_PER_CPU = 1024
_MILLI = 1000
MIN_BURSTABLE_OOM, MAX_BURSTABLE_OOM = 3, 999
"""Range of a Burstable container's oom_score_adj: above the value of Guaranteed pods and below the value of BestEffort pods."""
GUARANTEED_OOM, BEST_EFFORT_OOM = -997, 1000


class Range(Struct, frozen=True):
    """Amounts between two inclusive bounds, in thousandths of a CPU or in bytes."""

    least: int
    most: int | None
    """Largest possible amount. None means that the amount has no upper bound."""

    @property
    def is_exact(self) -> bool:
        return self.least == self.most

    def __contains__(self, amount: int) -> bool:
        return self.least <= amount and (self.most is None or amount <= self.most)


def estimate_cpu_request(shares: int) -> Range:
    """Return the range of CPU requests, in thousandths, that result in these shares.

    A CPU has 1,024 shares, more than thousandths. Between the bounds of 2 and 262,144 shares, different requests have different shares,
    and rounding up gives the exact request. Rounding to the nearest thousandth would be wrong: 41 thousandths become 41 shares, which are
    40.04 thousandths. Other programs may set shares that don't result from any request. Such shares count as the shares of the next
    larger request.
    """
    if shares <= MIN_SHARES:
        return Range(0, 2)
    least = -(-min(shares, MAX_SHARES) * _MILLI // _SHARES_PER_CPU)
    return Range(least, None if shares >= MAX_SHARES else least)


def estimate_cpu_limit(quota_us: int, period_us: int) -> Range | None:
    """Return the range of CPU limits, in thousandths, that result in this quota. None means that there is no limit.

    The result is exact above the kernel's smallest quota, because a period has at least a thousand microseconds.
    """
    if quota_us <= 0 or period_us <= 0:
        return None
    if quota_us <= MIN_QUOTA_US:
        return Range(1, max(1, ((MIN_QUOTA_US + 1) * _MILLI - 1) // period_us))
    least = -(-quota_us * _MILLI // period_us)
    return Range(least, max(least, ((quota_us + 1) * _MILLI - 1) // period_us))


def estimate_memory_request(oom_score_adj: int, capacity_bytes: int) -> Range | None:
    """Return the range of memory requests of a Burstable container, in bytes, that result in this oom_score_adj. None means that kubelet
    never gives a Burstable container this value.

    Args:
        oom_score_adj: 1000 minus the requested thousandths of the node's memory, within the range of the QoS class.
        capacity_bytes: the node's memory as known to kubelet.
    """
    if not MIN_BURSTABLE_OOM <= oom_score_adj <= MAX_BURSTABLE_OOM or capacity_bytes <= 0:
        return None
    thousandths = 1000 - oom_score_adj
    least = -(-thousandths * capacity_bytes // 1000) if oom_score_adj < MAX_BURSTABLE_OOM else 0
    most = ((thousandths + 1) * capacity_bytes - 1) // 1000
    return Range(least, most if oom_score_adj > MIN_BURSTABLE_OOM else None)
