import re

import pytest

from nodeagent.core.metrics import agent_metrics as m
from nodeagent.core.metrics.agent_metrics import AGENT_METRICS, METRICS, find_old_name, list_start_series, make_series
from nodeagent.core.metrics.deltas import MetricDelta, Series
from nodeagent.core.metrics.manager_metrics import (
    CPU_SHARED_POOL,
    TOPOLOGY_DURATION,
    MetricSpec,
    aligned,
    allocations,
    plus,
    set_gauge,
)
from nodeagent.core.metrics.totals import MetricTotals
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.pod import QosClass
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.core.model.state import Phase

BY_NAME = {spec.name: spec for spec in METRICS}


def test_names_are_unique_with_and_without_aliases() -> None:
    names = [spec.name for spec in METRICS]
    names += [alias for name in names if (alias := find_old_name(name)) is not None]
    assert len(names) == len(set(names))


OF_CONTAINERS = {
    m.CONTAINER_INFO,
    m.EXCLUSIVE_CPU_INTERRUPTS,
    m.EXCLUSIVE_CPU_SOFTIRQS,
    m.THROTTLED_PERIODS,
    m.PRESSURE,
}
"""Their series go with the pod that they name."""


@pytest.mark.parametrize("spec", AGENT_METRICS, ids=lambda spec: spec.name)
def test_our_own_names_follow_the_conventions(spec: MetricSpec) -> None:
    assert re.fullmatch(r"nodeagent_[a-z_]+", spec.name)
    assert spec.name.endswith("_total") == (spec.kind == "counter")
    is_duration = spec.name.endswith("_seconds") and not spec.name.endswith("_timestamp_seconds")
    assert is_duration == (spec.kind == "histogram")
    assert spec.help.endswith(".")
    if spec.name not in OF_CONTAINERS:
        assert not set(spec.labels) & {"pod", "uid", "name", "namespace", "container"}


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("kubelet_cpu_manager_shared_pool_size_millicores", "cpu_manager_shared_pool_size_millicores"),
        ("kubelet_cpu_manager_exclusive_cpu_allocation_count", "cpu_manager_exclusive_cpu_allocation_count"),
        ("kubelet_cpu_manager_pinning_requests_total", "cpu_manager_pinning_requests_total"),
        ("kubelet_cpu_manager_pinning_errors_total", "cpu_manager_pinning_errors_total"),
        ("kubelet_cpu_manager_allocation_per_numa", "cpu_manager_allocation_per_numa"),
        ("kubelet_memory_manager_pinning_requests_total", "memory_manager_pinning_requests_total"),
        ("kubelet_memory_manager_pinning_errors_total", "memory_manager_pinning_errors_total"),
        ("kubelet_topology_manager_admission_requests_total", "topology_manager_admission_requests_total"),
        ("kubelet_topology_manager_admission_errors_total", "topology_manager_admission_errors_total"),
        ("kubelet_topology_manager_admission_duration_ms", "topology_manager_admission_duration_ms"),
        ("kubelet_container_aligned_compute_resources_count", None),
        ("kubelet_container_aligned_compute_resources_failure_count", None),
        ("resource_manager_allocations_total", None),
        ("kubelet_pod_resources_endpoint_errors_list", "pod_resources_endpoint_errors_list"),
        ("resource_manager_allocation_errors_total", None),
        ("resource_manager_container_assignments", None),
    ],
)
def test_old_names(name: str, alias: str | None) -> None:
    assert name in BY_NAME
    assert find_old_name(name) == alias


def test_ours_have_no_old_names() -> None:
    assert [spec.name for spec in AGENT_METRICS if find_old_name(spec.name)] == []


def test_every_metric_but_those_of_the_machine_and_of_what_is_served_has_series_from_the_start() -> None:
    begun = {one.name for kind in ("counter", "gauge") for one in list_start_series(kind)} | set(m.BUCKETS)
    served = {spec.name for spec in m.POD_RESOURCES_METRICS} | {m.JOBS_START_TIME}
    of_machine = {"kubelet_cpu_manager_allocation_per_numa", m.BUILD_INFO, m.CONFIG_INFO}
    of_machine |= {m.FREE_CPUS, m.FREE_CORES, m.MEMORY_ALLOCATED, m.MEMORY_FREE}
    assert set(BY_NAME) - begun == {*of_machine, *served, *OF_CONTAINERS}


def test_kubelets_series_from_the_start() -> None:
    begun = {str(one) for one in list_start_series("counter")}
    assert {
        'kubelet_container_aligned_compute_resources_count{boundary="physical_cpu",scope="container"}',
        'kubelet_container_aligned_compute_resources_count{boundary="uncore_cache",scope="container"}',
        'kubelet_container_aligned_compute_resources_count{boundary="numa_node",scope="container"}',
        'kubelet_container_aligned_compute_resources_count{boundary="numa_node",scope="pod"}',
        'kubelet_container_aligned_compute_resources_failure_count{boundary="physical_cpu",scope="container"}',
        'kubelet_container_aligned_compute_resources_failure_count{boundary="numa_node",scope="container"}',
        'kubelet_container_aligned_compute_resources_failure_count{boundary="numa_node",scope="pod"}',
        "kubelet_cpu_manager_pinning_requests_total",
        "kubelet_topology_manager_admission_errors_total",
    } <= begun


def test_series_from_the_start_are_the_series_that_deltas_name() -> None:
    begun = set(list_start_series("counter"))
    for delta in (aligned("pod", "numa_node"), allocations("memory", "pod")):
        assert delta.series in begun


def test_managers_counters_add_up_and_their_gauges_are_left_to_the_state() -> None:
    totals = MetricTotals()
    totals.add([allocations("cpu", "node", 3), allocations("cpu", "node"), plus(CPU_SHARED_POOL, -4000)])
    totals.add([set_gauge("kubelet_cpu_manager_allocation_per_numa", 4, numa_node="0")])
    snapshot = totals.snapshot({Series(CPU_SHARED_POOL): 8000})
    assert snapshot.counters[allocations("cpu", "node").series] == 4
    assert snapshot.gauges[Series(CPU_SHARED_POOL)] == 8000
    assert [g for g in snapshot.gauges if g.name == "kubelet_cpu_manager_allocation_per_numa"] == []


def test_a_counter_that_kubelet_names_only_when_it_moves() -> None:
    totals = MetricTotals()
    new = Series("resource_manager_allocations_total", (("resource_name", "x"), ("source", "node")))
    totals.add([MetricDelta(new, 2)])
    assert totals.snapshot({}).counters[new] == 2


@pytest.mark.parametrize(
    ("name", "value", "counted_as"),
    [
        (m.CGROUP_WRITE_ERRORS, m.find_error_label(16), "EBUSY"),
        (m.CGROUP_WRITE_ERRORS, m.find_error_label(95), "EOPNOTSUPP"),
        (m.CGROUP_WRITE_ERRORS, m.find_error_label(11), "EAGAIN"),
        (m.CGROUP_WRITE_ERRORS, m.find_error_label(None), "differs"),
        (m.CGROUP_WRITE_ERRORS, m.find_error_label(110), "other"),
        (m.CGROUP_WRITE_ERRORS, m.find_error_label(999_999), "other"),
        (m.POD_REFUSALS, "OutOfcpu", "OutOfcpu"),
        (m.POD_REFUSALS, "OutOfexample.com/gpu-17", "other"),
        (m.DRIFT_CORRECTED, "cpuset.cpus", "cpuset.cpus"),
        (m.DRIFT_CORRECTED, "hugetlb.2MB.max", "other"),
        (m.STATE_SAVE_ERRORS, m.find_error_label(28), "ENOSPC"),
    ],
)
def test_label_values_are_a_closed_set(name: str, value: str, counted_as: str) -> None:
    totals = MetricTotals()
    before = set(totals.snapshot({}).counters)
    totals.count(name, value)
    after = totals.snapshot({}).counters
    assert set(after) == before
    assert [one.labels[0][1] for one, count in after.items() if count] == [counted_as]


def test_closed_sets_cover_the_types_they_come_from() -> None:
    gauges = {str(one) for one in list_start_series("gauge")}
    counters = {str(one) for one in list_start_series("counter")}
    assert {f'nodeagent_pods{{phase="{phase.value}",qos="{q.value}"}}' for phase in Phase for q in QosClass} <= gauges
    assert {f'nodeagent_problems{{kind="{kind.value}"}}' for kind in ProblemKind} <= gauges
    assert {f'nodeagent_drift_corrected_total{{attribute="{a.value}"}}' for a in Attribute} <= counters


def test_a_distribution() -> None:
    totals = MetricTotals()
    for milliseconds in (0, 0, 0.05, 1, 5000):
        totals.observe(TOPOLOGY_DURATION, milliseconds)
    seen = totals.snapshot({}).distributions[TOPOLOGY_DURATION]
    assert len(seen.counts) == 16
    assert seen.counts[0] == 3
    assert seen.counts[5] == 1  # 0.8 < 1 <= 1.6
    assert seen.counts[15] == 1
    assert sum(seen.counts) == 5
    assert seen.total == 5001.05


def test_a_snapshot_does_not_move() -> None:
    totals = MetricTotals()
    gauges = {make_series(BY_NAME[m.LAUNCHER_UP]): 1}
    before = totals.snapshot(gauges)
    totals.count(m.CGROUP_WRITES, amount=5)
    totals.observe(m.EVENT_DURATION, 1)
    gauges.clear()
    assert before.counters[Series(m.CGROUP_WRITES)] == 0
    assert before.distributions[m.EVENT_DURATION].total == 0
    assert before.gauges[Series(m.LAUNCHER_UP)] == 1
    assert totals.snapshot({}).counters[Series(m.CGROUP_WRITES)] == 5


def test_a_gauge_is_no_counter() -> None:
    with pytest.raises(AssertionError):
        MetricTotals().snapshot({Series(m.CGROUP_WRITES): 1})
