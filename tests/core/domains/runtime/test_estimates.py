"""Kubelet's conversions backwards: against the conversions themselves, over everything that they can have been given."""

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.domains.runtime.estimates import (
    MAX_BURSTABLE_OOM,
    MAX_SHARES,
    MIN_BURSTABLE_OOM,
    Range,
    estimate_cpu_limit,
    estimate_cpu_request,
    estimate_memory_request,
)
from nodeagent.core.model.cgroup import cpu_quota, cpu_shares

GIB = 2**30
milli = st.integers(0, 300_000)
periods_us = st.integers(1_000, 1_000_000)
"""Kubelet's cpuCFSQuotaPeriod: a millisecond to a second."""


def oom_score_adj(request_bytes: int, capacity_bytes: int) -> int:
    """Kubelet's, of a Burstable container (pkg/kubelet/qos/policy.go)."""
    adjusted = 1000 - 1000 * request_bytes // capacity_bytes
    return max(MIN_BURSTABLE_OOM, min(MAX_BURSTABLE_OOM, adjusted))


@given(milli)
def test_the_range_of_shares_holds_what_was_asked_for(asked: int) -> None:
    assert asked in estimate_cpu_request(cpu_shares(asked))


def test_shares_are_exact_between_kubelets_bounds() -> None:
    """All of them: 3 thousandths to the last before 256 CPUs."""
    assert all(estimate_cpu_request(cpu_shares(asked)) == Range(asked, asked) for asked in range(3, 256_000))


@given(st.integers(2, MAX_SHARES))
def test_the_range_of_shares_holds_nothing_else(shares: int) -> None:
    found = estimate_cpu_request(shares)
    assert found.least == 0 or cpu_shares(found.least - 1) < shares
    assert found.most is None or cpu_shares(found.most + 1) > shares


@pytest.mark.parametrize(
    ("shares", "found"),
    [
        (0, Range(0, 2)),
        (2, Range(0, 2)),
        (3, Range(3, 3)),
        (41, Range(41, 41)),
        (1024, Range(1000, 1000)),
        (2560, Range(2500, 2500)),
        (262_143, Range(256_000, 256_000)),  # no request's: that of the next, which is at the upper bound
        (262_144, Range(256_000, None)),
        (2**63, Range(256_000, None)),
    ],
)
def test_shares(shares: int, found: Range) -> None:
    assert estimate_cpu_request(shares) == found


@given(st.integers(1, 1_000_000), periods_us)
def test_the_range_of_a_quota_holds_what_was_asked_for(limit: int, period_us: int) -> None:
    quota_us = cpu_quota(limit, period_us).quota_us
    assert quota_us is not None
    found = estimate_cpu_limit(quota_us, period_us)
    assert found is not None
    assert limit in found
    assert quota_us == 1_000 or found.is_exact


@pytest.mark.parametrize(
    ("quota_us", "period_us", "found"),
    [
        (-1, 100_000, None),
        (0, 100_000, None),
        (100_000, 0, None),
        (200_000, 100_000, Range(2000, 2000)),
        (50_000, 100_000, Range(500, 500)),
        (1_000, 100_000, Range(1, 10)),
        (1_000, 1_000, Range(1, 1000)),
    ],
)
def test_quota(quota_us: int, period_us: int, found: Range | None) -> None:
    assert estimate_cpu_limit(quota_us, period_us) == found


@given(st.integers(1, 64 * 2**40), st.data())
def test_the_range_of_a_score_holds_what_was_asked_for(capacity_bytes: int, data: st.DataObject) -> None:
    asked = data.draw(st.integers(0, capacity_bytes))
    found = estimate_memory_request(oom_score_adj(asked, capacity_bytes), capacity_bytes)
    assert found is not None
    assert asked in found


@given(st.integers(MIN_BURSTABLE_OOM, MAX_BURSTABLE_OOM), st.integers(1000, 64 * 2**40))
def test_the_range_of_a_score_holds_nothing_else(score: int, capacity_bytes: int) -> None:
    found = estimate_memory_request(score, capacity_bytes)
    assert found is not None
    assert found.least == 0 or oom_score_adj(found.least - 1, capacity_bytes) > score
    assert found.most is None or oom_score_adj(found.most + 1, capacity_bytes) < score


@pytest.mark.parametrize(
    ("score", "capacity_bytes"), [(-997, GIB), (2, GIB), (1000, GIB), (0, GIB), (500, 0), (-(2**40), GIB)]
)
def test_no_range(score: int, capacity_bytes: int) -> None:
    assert estimate_memory_request(score, capacity_bytes) is None
