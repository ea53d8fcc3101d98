"""What kubelet was asked for, from what it made of it: its conversions backwards. Each returns every amount that it can have been.

Kubelet's are MilliCPUToShares, MilliCPUToQuota (pkg/kubelet/cm) and GetContainerOOMScoreAdjust (pkg/kubelet/qos).
"""

from msgspec import Struct

from nodeagent.core.model.cgroup import MIN_QUOTA_US

MIN_SHARES, MAX_SHARES = 2, 262_144
_SHARES_PER_CPU = 1024
_MILLI = 1000
MIN_BURSTABLE_OOM, MAX_BURSTABLE_OOM = 3, 999
"""The range of oom_score_adj of a Burstable container: above the Guaranteed's and below the BestEffort's."""
GUARANTEED_OOM, BEST_EFFORT_OOM = -997, 1000


class Range(Struct, frozen=True):
    """Amounts between two bounds, both included: thousandths of a CPU, or bytes."""

    least: int
    most: int | None
    """None: the conversion has no bound there."""

    @property
    def is_exact(self) -> bool:
        return self.least == self.most

    def __contains__(self, amount: int) -> bool:
        return self.least <= amount and (self.most is None or amount <= self.most)


def cpu_request(shares: int) -> Range:
    """Return the CPU requests that become these shares, in thousandths.

    Between the bounds, 2 shares and 262,144, no two requests become the same, as there are more shares than thousandths to a CPU: rounded
    up, the way back is exact. (Rounded to the nearest it isn't: 41 thousandths are 41 shares, which are 40.04 thousandths.) Shares that
    kubelet makes of no request, of another program, count as those of the next larger one.
    """
    if shares <= MIN_SHARES:
        return Range(0, 2)
    least = -(-min(shares, MAX_SHARES) * _MILLI // _SHARES_PER_CPU)
    return Range(least, None if shares >= MAX_SHARES else least)


def cpu_limit(quota_us: int, period_us: int) -> Range | None:
    """Return the CPU limits that become this quota, in thousandths; None: there is no limit.

    Exact above the kernel's smallest quota, as periods have no less than a thousand microseconds.
    """
    if quota_us <= 0 or period_us <= 0:
        return None
    if quota_us <= MIN_QUOTA_US:
        return Range(1, max(1, ((MIN_QUOTA_US + 1) * _MILLI - 1) // period_us))
    least = -(-quota_us * _MILLI // period_us)
    return Range(least, max(least, ((quota_us + 1) * _MILLI - 1) // period_us))


def memory_request(oom_score_adj: int, capacity_bytes: int) -> Range | None:
    """Return the memory requests of a Burstable container that become this oom_score_adj; None: kubelet gives it to none.

    Args:
        oom_score_adj: 1000 less the thousandths of the node's memory that are requested, within its class's range.
        capacity_bytes: the node's memory, as kubelet has it.
    """
    if not MIN_BURSTABLE_OOM <= oom_score_adj <= MAX_BURSTABLE_OOM or capacity_bytes <= 0:
        return None
    thousandths = 1000 - oom_score_adj
    least = -(-thousandths * capacity_bytes // 1000) if oom_score_adj < MAX_BURSTABLE_OOM else 0
    most = ((thousandths + 1) * capacity_bytes - 1) // 1000
    return Range(least, most if oom_score_adj > MIN_BURSTABLE_OOM else None)
