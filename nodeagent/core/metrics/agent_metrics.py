"""The agent's own metrics, the time series that exist from the start, and former names of kubelet's metrics. No metrics library is used.

Each label has a fixed set of values, and any other value counts as `other`. There are two exceptions whose label values come from pods:
`nodeagent_container_info`, and the counters of containers with exclusive CPUs. The series of a pod are removed when the pod ends.
"""

import errno
from collections.abc import Mapping
from types import MappingProxyType

from nodeagent.core.metrics.deltas import Series
from nodeagent.core.metrics.manager_metrics import (
    ALIGNED,
    ALIGNED_FAILURES,
    ALLOCATION_ERRORS,
    ALLOCATIONS,
    ASSIGNMENTS,
    DURATION_BUCKETS_MS,
    METRICS as KUBELET_METRICS,
    TOPOLOGY_DURATION,
    MetricSpec,
)
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.pod import QosClass
from nodeagent.core.model.problem_kinds import ProblemKind
from nodeagent.core.model.promises import Isolation
from nodeagent.core.model.refusals import OF_RESIZES, OF_RUNTIMES, STATE_NOT_SAVED, Reason
from nodeagent.core.model.state import Phase
from nodeagent.core.model.waiting import RequestKind

BUILD_INFO = "nodeagent_build_info"
CONFIG_INFO = "nodeagent_config_info"
FREE_CPUS = "nodeagent_free_exclusive_cpus"
FREE_CORES = "nodeagent_free_whole_cores"
MEMORY_ALLOCATED = "nodeagent_memory_allocated_bytes"
MEMORY_FREE = "nodeagent_memory_free_bytes"
THROTTLED_PERIODS = "nodeagent_container_throttled_periods_total"
PRESSURE = "nodeagent_container_pressure_seconds_total"
EVENT_DURATION = "nodeagent_event_duration_seconds"
RECONCILE_DURATION = "nodeagent_reconcile_duration_seconds"
CGROUP_WRITES = "nodeagent_cgroup_writes_total"
CGROUP_WRITE_ERRORS = "nodeagent_cgroup_write_errors_total"
DRIFT_CORRECTED = "nodeagent_drift_corrected_total"
STATE_SAVE_ERRORS = "nodeagent_state_save_errors_total"
POD_REFUSALS = "nodeagent_pod_refusals_total"
CHANGE_REFUSALS = "nodeagent_change_refusals_total"
CONTAINER_RESTARTS = "nodeagent_container_restarts_total"
PODS = "nodeagent_pods"
WAITING = "nodeagent_waiting_requests"
JOBS_WAITING = "nodeagent_jobs_waiting"
JOBS_WAITING_TIME = "nodeagent_jobs_waiting_timestamp_seconds"
JOBS_START_TIME = "nodeagent_jobs_latest_start_timestamp_seconds"
RESERVATIONS = "nodeagent_reservations"
CONTAINERS = "nodeagent_containers"
CONTAINER_INFO = "nodeagent_container_info"
EXCLUSIVE_CPU_INTERRUPTS = "nodeagent_exclusive_cpu_interrupts_total"
EXCLUSIVE_CPU_SOFTIRQS = "nodeagent_exclusive_cpu_softirqs_total"
DEGRADED_CONTAINERS = "nodeagent_degraded_containers"
STARVED_CONTAINERS = "nodeagent_starved_containers"
MANIFEST_PROBLEMS = "nodeagent_manifest_problems"
PROBLEMS = "nodeagent_problems"
CONFIG_REFUSED = "nodeagent_config_refused"
CONFIG_REFUSED_TIME = "nodeagent_config_refused_timestamp_seconds"
STATE_GENERATION = "nodeagent_state_generation"
LAUNCHER_UP = "nodeagent_launcher_up"
RUNTIME_ANSWER_DURATION = "nodeagent_runtime_answer_duration_seconds"
RUNTIME_LATE = "nodeagent_runtime_late_answers_total"
RUNTIME_UNASKED = "nodeagent_runtime_unasked_containers_total"
RUNTIME_ILLEGAL = "nodeagent_runtime_illegal_events_total"
REQUESTS = "kubelet_pod_resources_endpoint_requests_total"
LIST_REQUESTS = "kubelet_pod_resources_endpoint_requests_list"
LIST_ERRORS = "kubelet_pod_resources_endpoint_errors_list"
ALLOCATABLE_REQUESTS = "kubelet_pod_resources_endpoint_requests_get_allocatable"
ALLOCATABLE_ERRORS = "kubelet_pod_resources_endpoint_errors_get_allocatable"
GET_REQUESTS = "kubelet_pod_resources_endpoint_requests_get"
GET_ERRORS = "kubelet_pod_resources_endpoint_errors_get"

AGENT_METRICS: tuple[MetricSpec, ...] = (
    MetricSpec(BUILD_INFO, "gauge", "Always 1; the label is the running version of nodeagent.", ("version",)),
    MetricSpec(
        CONFIG_INFO,
        "gauge",
        "Always 1; the label is a hash of the configuration in use. Nodes with the same hash have the same configuration.",
        ("hash",),
    ),
    MetricSpec(
        FREE_CPUS, "gauge", "CPUs that can still be allocated exclusively (CPU manager policy static).", ("numa_node",)
    ),
    MetricSpec(FREE_CORES, "gauge", "Cores on which all CPUs can still be allocated exclusively.", ("numa_node",)),
    MetricSpec(
        MEMORY_ALLOCATED,
        "gauge",
        "Memory and huge pages allocated to pods (memory manager policy Static).",
        ("numa_node", "resource"),
    ),
    MetricSpec(
        MEMORY_FREE, "gauge", "Memory and huge pages that can still be allocated to pods.", ("numa_node", "resource")
    ),
    MetricSpec(
        EVENT_DURATION,
        "histogram",
        "Time from a wake-up to its last write, for turns that decided something.",
    ),
    MetricSpec(
        RECONCILE_DURATION, "histogram", "Duration of sync loop iterations (turns) in which nothing had to be decided."
    ),
    MetricSpec(CGROUP_WRITES, "counter", "Changes made to cgroups."),
    MetricSpec(CGROUP_WRITE_ERRORS, "counter", "Failed changes to cgroups, by the kernel's answer.", ("reason",)),
    MetricSpec(
        DRIFT_CORRECTED,
        "counter",
        "Corrected changes of other programs to cgroups, their files and processes.",
        ("attribute",),
    ),
    MetricSpec(STATE_SAVE_ERRORS, "counter", "Decisions dropped because they could not be saved durably.", ("reason",)),
    MetricSpec(POD_REFUSALS, "counter", "Pods refused.", ("reason",)),
    MetricSpec(CHANGE_REFUSALS, "counter", "Changed manifests refused; their pods keep running.", ("reason",)),
    MetricSpec(CONTAINER_RESTARTS, "counter", "Restarts of containers."),
    MetricSpec(
        PODS, "gauge", "Known pods. Refused pods count as Failed, and waiting jobs as Pending.", ("phase", "qos")
    ),
    MetricSpec(WAITING, "gauge", "Unmet requests of pods, by kind of request.", ("asked",)),
    MetricSpec(JOBS_WAITING, "gauge", "Jobs that wait for room (`nodeagent queue`)."),
    MetricSpec(
        JOBS_WAITING_TIME,
        "gauge",
        "Begin of the longest wait of a job for room, in seconds since the epoch. 0 means that no job waits.",
    ),
    MetricSpec(
        JOBS_START_TIME,
        "gauge",
        "Latest start of waiting jobs (`nodeagent queue`), in seconds since the epoch. next: of the job that starts first; last: of the job"
        " that starts last. NaN means that this start is unknown, and 0 that no job waits.",
        ("start",),
    ),
    MetricSpec(RESERVATIONS, "gauge", "Reservations that have not ended (`nodeagent reserve --list`)."),
    MetricSpec(
        CONTAINERS,
        "gauge",
        "Containers of admitted pods, by the set of containers with which they share CPUs.",
        ("isolation",),
    ),
    MetricSpec(
        CONTAINER_INFO,
        "gauge",
        "Always 1, for joins. The labels of each container of an admitted pod have its exclusive CPUs and the NUMA nodes of its memory,"
        " as kernel lists. Empty labels mean the shared pool, and any node.",
        ("namespace", "pod", "container", "cpus", "mems"),
    ),
    MetricSpec(
        EXCLUSIVE_CPU_INTERRUPTS,
        "counter",
        "Interrupts handled on the container's exclusive CPUs, also on behalf of the container, as in /proc/interrupts. bound_device:"
        " interrupts that the kernel doesn't let programs move. claimed: interrupts that the pod's annotation requests (only for such"
        " pods). A CPU is counted between two scrapes that both found it allocated to the container.",
        ("namespace", "pod", "container", "kind"),
    ),
    MetricSpec(
        EXCLUSIVE_CPU_SOFTIRQS,
        "counter",
        "Softirqs handled on the container's exclusive CPUs, as in /proc/softirqs, counted between two scrapes like the interrupts."
        " network: NET_TX, NET_RX; block: BLOCK, IRQ_POLL; timer: TIMER, HRTIMER; tick: SCHED, RCU (work of the scheduler's tick).",
        ("namespace", "pod", "container", "kind"),
    ),
    MetricSpec(
        THROTTLED_PERIODS,
        "counter",
        "Enforcement intervals of the CPU quota in which a container with exclusive CPUs was throttled (cpu.stat).",
        ("namespace", "pod", "container"),
    ),
    MetricSpec(
        PRESSURE,
        "counter",
        "Time for which some or all tasks of a container with exclusive CPUs waited for a resource (cpu.pressure, memory.pressure,"
        " irq.pressure). irq has only full.",
        ("namespace", "pod", "container", "resource", "share"),
    ),
    MetricSpec(DEGRADED_CONTAINERS, "gauge", "Containers with exclusive CPUs that are offline."),
    MetricSpec(
        STARVED_CONTAINERS, "gauge", "Containers that are frozen, or not started, because no CPU is left for them."
    ),
    MetricSpec(
        MANIFEST_PROBLEMS, "gauge", "Manifest files that are now invalid, unreadable, duplicates, or refused changes."
    ),
    MetricSpec(
        PROBLEMS,
        "gauge",
        "Problems that need attention now, by kind (docs/reference/problems.md). If all are 0, nothing needs attention.",
        ("kind",),
    ),
    MetricSpec(
        CONFIG_REFUSED,
        "gauge",
        "Whether the configuration file is refused, so that an earlier configuration is in use.",
    ),
    MetricSpec(
        CONFIG_REFUSED_TIME,
        "gauge",
        "Time since which the configuration file is refused, in seconds since the epoch. 0 means that it isn't.",
    ),
    MetricSpec(STATE_GENERATION, "gauge", "Number of states saved since the node was set up."),
    MetricSpec(LAUNCHER_UP, "gauge", "Whether the launcher of the pods' unit responds."),
    MetricSpec(
        RUNTIME_ANSWER_DURATION,
        "histogram",
        "Time from a container runtime's call to its answer (nriSocket); the runtime waits 2 s.",
    ),
    MetricSpec(RUNTIME_LATE, "counter", "Calls that were denied because there was no decision in time (nriSocket)."),
    MetricSpec(
        RUNTIME_UNASKED,
        "counter",
        "Containers that were found to have been started by a runtime without a call to the agent (nriSocket).",
    ),
    MetricSpec(
        RUNTIME_ILLEGAL,
        "counter",
        "Calls of a runtime that changed nothing, because they were late or out of order for the container's stage (nriSocket).",
        ("event",),
    ),
)

POD_RESOURCES_METRICS: tuple[MetricSpec, ...] = tuple(
    MetricSpec(name, "counter", f"{what}. Broken down by server api version.", ("server_api_version",))
    for name, what in (
        (REQUESTS, "Cumulative number of requests to the PodResource endpoint"),
        (LIST_REQUESTS, "Number of requests to the PodResource List endpoint"),
        (LIST_ERRORS, "Number of requests to the PodResource List endpoint which returned error"),
        (ALLOCATABLE_REQUESTS, "Number of requests to the PodResource GetAllocatableResources endpoint"),
        (
            ALLOCATABLE_ERRORS,
            "Number of requests to the PodResource GetAllocatableResources endpoint which returned error",
        ),
        (GET_REQUESTS, "Number of requests to the PodResource Get endpoint"),
        (GET_ERRORS, "Number of requests to the PodResource Get endpoint which returned error"),
    )
)
"""Metrics of kubelet's PodResources API. They have no series if the agent doesn't serve this API."""

METRICS: tuple[MetricSpec, ...] = (*KUBELET_METRICS, *POD_RESOURCES_METRICS, *AGENT_METRICS)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BUCKETS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        TOPOLOGY_DURATION: DURATION_BUCKETS_MS,
        EVENT_DURATION: _SECONDS,
        RECONCILE_DURATION: _SECONDS,
        RUNTIME_ANSWER_DURATION: _SECONDS,
    }
)
"""Upper bounds of the buckets of each histogram, without +Inf."""

OTHER = "other"
REMOVED = "cgroup"
"""Label value for drift: another program removed a cgroup."""
MOVED = "cgroup.procs"
"""Label value for drift: another program moved a container's main process to another cgroup."""
DIFFERS = "differs"
"""Label value for failed writes to cgroups: the kernel accepted the written value, but granted another one (cpuset.*.effective)."""
_CGROUP_ERRNOS = (
    "EACCES",
    "EAGAIN",
    "EBUSY",
    "EINVAL",
    "EIO",
    "ENODEV",
    "ENOENT",
    "ENOMEM",
    "ENOSPC",
    "EOPNOTSUPP",
    "EPERM",
    "ERANGE",
    "EROFS",
)
_FILE_ERRNOS = ("EACCES", "EDQUOT", "EIO", "ENOENT", "ENOSPC", "EPERM", "EROFS")
CAPACITY_REASONS = tuple(f"OutOf{what}" for what in ("cpu", "memory", "pods", "hugepages-2Mi", "hugepages-1Gi"))

_SOURCES = tuple((resource, source) for resource in ("cpu", "memory") for source in ("node", "pod"))
START_VALUES: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        ALIGNED: (
            ("numa_node", "container"),
            ("numa_node", "pod"),
            ("physical_cpu", "container"),
            ("uncore_cache", "container"),
        ),
        ALIGNED_FAILURES: (("numa_node", "container"), ("numa_node", "pod"), ("physical_cpu", "container")),
        ALLOCATIONS: _SOURCES,
        ALLOCATION_ERRORS: _SOURCES,
        ASSIGNMENTS: tuple(
            (kind, resource)
            for kind in ("node_exclusive", "pod_exclusive", "pod_shared")
            for resource in ("cpu", "memory")
        ),
        CGROUP_WRITE_ERRORS: tuple((reason,) for reason in (*_CGROUP_ERRNOS, DIFFERS, OTHER)),
        DRIFT_CORRECTED: tuple((attribute,) for attribute in (*(a.value for a in Attribute), REMOVED, MOVED, OTHER)),
        STATE_SAVE_ERRORS: tuple((reason,) for reason in (*_FILE_ERRNOS, OTHER)),
        POD_REFUSALS: tuple(
            (reason,)
            for reason in (*(r.value for r in Reason), *CAPACITY_REASONS, *OF_RUNTIMES, STATE_NOT_SAVED, OTHER)
        ),
        CHANGE_REFUSALS: tuple(
            (reason,) for reason in (*(r.value for r in Reason), *CAPACITY_REASONS, *OF_RESIZES, OTHER)
        ),
        RUNTIME_ILLEGAL: (("create",), ("start",), ("update",)),
        PODS: tuple((phase.value, qos.value) for phase in Phase for qos in QosClass),
        WAITING: tuple((kind.value,) for kind in RequestKind),
        CONTAINERS: tuple((level.value,) for level in Isolation),
        PROBLEMS: tuple((kind.value,) for kind in ProblemKind),
    }
)
"""Label values of the time series that exist with the value 0 from the start, by metric. The values are in the order of the metric's
labels.
"""


def make_series(spec: MetricSpec, *values: str) -> Series:
    """Return the time series of a metric for these label values, which must be in the order of the metric's labels."""
    return Series(spec.name, tuple(sorted(zip(spec.labels, values, strict=True))))


def list_start_series(kind: str) -> list[Series]:
    """Return the time series that exist with the value 0 from the start, for all metrics of one type (such as `counter`)."""
    return [
        make_series(spec, *values)
        for spec in METRICS
        if spec.kind == kind
        for values in START_VALUES.get(spec.name, () if spec.labels else ((),))
    ]


def find_error_label(error: int | None) -> str:
    """Return the label value for an errno. None means that the kernel reported no error, but granted another value than the written one."""
    if error == errno.EOPNOTSUPP:
        # Linux has one number for EOPNOTSUPP and ENOTSUP, and Python's `errorcode` names it ENOTSUP
        return "EOPNOTSUPP"
    return DIFFERS if error is None else errno.errorcode.get(error, OTHER)


def find_old_name(name: str) -> str | None:
    """Return the name that a metric had before kubelet added the prefix `kubelet_` (D4). None means that its name has never changed."""
    bare = name.removeprefix("kubelet_")
    return bare if bare != name and bare.startswith(_ALIASED) else None


_ALIASED = ("cpu_manager_", "memory_manager_", "topology_manager_", "pod_resources_endpoint_")
