"""Inverse of kubelet's conversions from requests and limits to cgroup values. Each function returns the range of all amounts that may have
produced a value.

kubelet's functions are MilliCPUToShares and MilliCPUToQuota (pkg/kubelet/cm), and GetContainerOOMScoreAdjust (pkg/kubelet/qos).
"""

from msgspec import Struct

from nodeagent.core.model.cgroup import MIN_QUOTA_US

MIN_SHARES, MAX_SHARES = 2, 262_144
_SHARES_PER_CPU = 1024
_MILLI = 1000
MIN_BURSTABLE_OOM, MAX_BURSTABLE_OOM = 3, 999
"""Smallest and largest oom_score_adj of a Burstable container. They lie between the values for Guaranteed and BestEffort pods."""
GUARANTEED_OOM, BEST_EFFORT_OOM = -997, 1000


class Range(Struct, frozen=True):
    """Range of possible amounts, with inclusive bounds. The unit is a thousandth of a CPU, or a byte."""

    least: int
    most: int | None
    """Largest possible amount. None means that there is no upper bound."""

    @property
    def is_exact(self) -> bool:
        return self.least == self.most

    def __contains__(self, amount: int) -> bool:
        return self.least <= amount and (self.most is None or amount <= self.most)


def estimate_cpu_request(shares: int) -> Range:
    """Return the range of CPU requests, in thousandths, for which kubelet sets these CPU shares.

    Between 2 and 262,144 shares, each request has shares of its own, because a CPU has 1,024 shares but only 1,000 thousandths. Rounding up
    gives the exact request. Rounding to the nearest would be wrong: a request of 41 thousandths becomes 41 shares, which are 40.04
    thousandths. If another program sets shares that belong to no request, the next larger request is returned.
    """
    if shares <= MIN_SHARES:
        return Range(0, 2)
    least = -(-min(shares, MAX_SHARES) * _MILLI // _SHARES_PER_CPU)
    return Range(least, None if shares >= MAX_SHARES else least)


def estimate_cpu_limit(quota_us: int, period_us: int) -> Range | None:
    """Return the range of CPU limits, in thousandths, for which kubelet sets this quota. None means that there is no limit.

    The range contains a single limit unless the quota is the kernel's smallest one, because a period has at least 1,000 microseconds.
    """
    if quota_us <= 0 or period_us <= 0:
        return None
    if quota_us <= MIN_QUOTA_US:
        return Range(1, max(1, ((MIN_QUOTA_US + 1) * _MILLI - 1) // period_us))
    least = -(-quota_us * _MILLI // period_us)
    return Range(least, max(least, ((quota_us + 1) * _MILLI - 1) // period_us))


def estimate_memory_request(oom_score_adj: int, capacity_bytes: int) -> Range | None:
    """Return the range of memory requests, in bytes, for which kubelet sets this oom_score_adj on a Burstable container. None means that
    kubelet never sets this value on a Burstable container.

    Args:
        oom_score_adj: the container's value. kubelet computes it as 1000 minus the requested thousandths of the node's memory, limited to
            the range for Burstable containers.
        capacity_bytes: the node's memory, as kubelet knows it.
    """
    if not MIN_BURSTABLE_OOM <= oom_score_adj <= MAX_BURSTABLE_OOM or capacity_bytes <= 0:
        return None
    thousandths = 1000 - oom_score_adj
    least = -(-thousandths * capacity_bytes // 1000) if oom_score_adj < MAX_BURSTABLE_OOM else 0
    most = ((thousandths + 1) * capacity_bytes - 1) // 1000
    return Range(least, most if oom_score_adj > MIN_BURSTABLE_OOM else None)
