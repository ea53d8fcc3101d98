"""Metrics of kubelet's CPU, memory and topology managers, with kubelet's names, types, labels and help texts. Functions make the changes of
these metrics.
"""

from functools import lru_cache

from msgspec import Struct

from nodeagent.core.metrics.deltas import MetricDelta, Series


class MetricSpec(Struct, frozen=True):
    name: str
    kind: str
    """Metric type: `counter`, `gauge` or `histogram`."""
    help: str
    labels: tuple[str, ...] = ()


CPU_REQUESTS = "kubelet_cpu_manager_pinning_requests_total"
CPU_ERRORS = "kubelet_cpu_manager_pinning_errors_total"
CPU_SHARED_POOL = "kubelet_cpu_manager_shared_pool_size_millicores"
CPU_EXCLUSIVE = "kubelet_cpu_manager_exclusive_cpu_allocation_count"
CPU_PER_NUMA = "kubelet_cpu_manager_allocation_per_numa"
MEMORY_REQUESTS = "kubelet_memory_manager_pinning_requests_total"
MEMORY_ERRORS = "kubelet_memory_manager_pinning_errors_total"
TOPOLOGY_REQUESTS = "kubelet_topology_manager_admission_requests_total"
TOPOLOGY_ERRORS = "kubelet_topology_manager_admission_errors_total"
TOPOLOGY_DURATION = "kubelet_topology_manager_admission_duration_ms"
ALIGNED = "kubelet_container_aligned_compute_resources_count"
ALIGNED_FAILURES = "kubelet_container_aligned_compute_resources_failure_count"
ALLOCATIONS = "resource_manager_allocations_total"
ALLOCATION_ERRORS = "resource_manager_allocation_errors_total"
ASSIGNMENTS = "resource_manager_container_assignments"

METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(CPU_REQUESTS, "counter", "The number of cpu core allocations which required pinning."),
    MetricSpec(CPU_ERRORS, "counter", "The number of cpu core allocations which required pinning failed."),
    MetricSpec(CPU_SHARED_POOL, "gauge", "The size of the shared CPU pool for non-guaranteed QoS pods, in millicores."),
    MetricSpec(
        CPU_EXCLUSIVE, "gauge", "The total number of CPUs exclusively allocated to containers running on this node"
    ),
    MetricSpec(CPU_PER_NUMA, "gauge", "Number of CPUs allocated per NUMA node", ("numa_node",)),
    MetricSpec(MEMORY_REQUESTS, "counter", "The number of memory pages allocations which required pinning."),
    MetricSpec(MEMORY_ERRORS, "counter", "The number of memory pages allocations which required pinning that failed."),
    MetricSpec(TOPOLOGY_REQUESTS, "counter", "The number of admission requests where resources have to be aligned."),
    MetricSpec(
        TOPOLOGY_ERRORS, "counter", "The number of admission request failures where resources could not be aligned."
    ),
    MetricSpec(TOPOLOGY_DURATION, "histogram", "Duration in milliseconds to serve a pod admission request."),
    MetricSpec(
        ALIGNED,
        "counter",
        "Cumulative number of aligned compute resources allocated to containers by alignment type.",
        ("boundary", "scope"),
    ),
    MetricSpec(
        ALIGNED_FAILURES,
        "counter",
        "Cumulative number of failures to allocate aligned compute resources to containers by alignment type.",
        ("boundary", "scope"),
    ),
    MetricSpec(
        ALLOCATIONS,
        "counter",
        "Number of exclusive resource allocations performed by a resource manager.",
        ("resource_name", "source"),
    ),
    MetricSpec(
        ALLOCATION_ERRORS,
        "counter",
        "Number of errors encountered during exclusive resource allocation.",
        ("resource_name", "source"),
    ),
    MetricSpec(
        ASSIGNMENTS,
        "counter",
        "Number of containers with a specific type of resource assignment.",
        ("assignment_type", "resource_name"),
    ),
)

DURATION_BUCKETS_MS = tuple(0.05 * 2**i for i in range(15))
"""Upper bounds of the histogram buckets for the duration of an admission, in milliseconds."""

MetricDeltas = tuple[MetricDelta, ...]


@lru_cache(maxsize=1024)
def plus(name: str, amount: int = 1, /, **labels: str) -> MetricDelta:
    """Return a change that adds an amount to a counter or gauge. The result is cached, because the same few changes occur again
    and again.
    """
    return MetricDelta(Series(name, tuple(sorted(labels.items()))), amount)


@lru_cache(maxsize=1024)
def set_gauge(name: str, value: int, /, **labels: str) -> MetricDelta:
    return MetricDelta(Series(name, tuple(sorted(labels.items()))), value, absolute=True)


def allocation_errors(resource: str, source: str) -> MetricDelta:
    return plus(ALLOCATION_ERRORS, resource_name=resource, source=source)


def allocations(resource: str, source: str, amount: int = 1) -> MetricDelta:
    return plus(ALLOCATIONS, amount, resource_name=resource, source=source)


def assignments(resource: str, kind: str) -> MetricDelta:
    return plus(ASSIGNMENTS, resource_name=resource, assignment_type=kind)


def aligned(scope: str, boundary: str) -> MetricDelta:
    return plus(ALIGNED, scope=scope, boundary=boundary)


def aligned_failure(scope: str, boundary: str) -> MetricDelta:
    return plus(ALIGNED_FAILURES, scope=scope, boundary=boundary)
