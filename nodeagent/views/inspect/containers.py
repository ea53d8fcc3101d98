"""Description of one container in `nodeagent inspect`: its state, its allocation, its effective CPUs and memory, and the reason for shared
CPUs.
"""

from typing import Any

from msgspec import Struct, to_builtins

from nodeagent.core.admission.node_rules import NodeRules, count_lacking_cpus, isolation
from nodeagent.core.cgroups.closing import Closing
from nodeagent.core.model.cgroup import (
    Attribute,
    ByteLimit,
    CpuMax,
    DesiredCgroup,
    ObservedCgroup,
    Partition,
    PartitionKind,
)
from nodeagent.core.model.demand import WhyShared, why_shared
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, ContainerKind
from nodeagent.core.model.pod_resources import container_cgroup_amounts
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.model.quiet import ProcessSettings
from nodeagent.core.model.state import ContainerStatus, Exit, PodEntry, run_id
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.turn.lifecycle import next_start_at_ms
from nodeagent.formats.kernel.cgroup_values import format_value
from nodeagent.formats.node_view import NodeView
from nodeagent.views.holdings.by_resource import container_fields, promised_fields
from nodeagent.views.wording.cpu_places import Places

Document = dict[str, Any]


class ContainerView(Struct, frozen=True):
    """Container with its saved and observed state. The functions of this module describe it from this data."""

    view: NodeView
    entry: PodEntry
    container: Container
    status: ContainerStatus
    path: str
    """Path of the container's cgroup, as returned by `PodEntry.container_path`."""
    cgroup: ObservedCgroup | None
    """Observed values of the container's cgroup. None means that the cgroup doesn't exist, or that cgroups weren't read."""
    cpuset: ObservedCgroup | None
    """Observed cgroup whose cpuset applies to the container: its own cgroup or, for a pooled pod, the shared pool's. None means that this
    cgroup or the container's cgroup doesn't exist.
    """
    process_settings: ProcessSettings
    """Settings that the container's process will get when it is started next."""
    desired: DesiredCgroup | None
    """Desired values of the cgroup. None means that the cgroup shouldn't exist, or that cgroups weren't read."""
    is_different: bool
    """Whether the cgroup's observed values differ from the desired values."""
    closing: Closing | None = None
    """Isolation of the container's exclusive CPUs from the host. None means that host processes aren't kept off its CPUs."""

    @property
    def rules(self) -> NodeRules:
        return self.view.node.rules

    @property
    def promises(self) -> Promises:
        return self.view.state.promises

    @property
    def is_populated(self) -> bool:
        return self.cgroup is not None and self.cgroup.is_populated

    @property
    def is_starved(self) -> bool:
        return self.desired is not None and self.desired.is_starved

    @property
    def process_count(self) -> int | None:
        """Return the number of the container's processes. None means that the number is unknown."""
        if self.view.observed.cgroups is None:
            return None
        return self.view.observed.process_counts.get(self.path) if self.path in self.view.observed.cgroups else 0


def describe_container(observed: ContainerView, places: Places) -> Document:
    entry, container, status = observed.entry, observed.container, observed.status
    uid, topology = entry.pod.uid, observed.view.node.topology
    own = own_set_of(observed.promises, uid, container.name)
    level = isolation(observed.rules, observed.promises, entry.pod, container.name) if entry.is_active else None
    usable = own & topology.online if own is not None else CpuSet()
    used_cpus = usable or (None if observed.cpuset is None or observed.is_starved else observed.cpuset.cpus_effective)
    why = why_shared(observed.rules.placement, entry.pod, container)
    lacking = 0
    if why is None and entry.holds:
        lacking = count_lacking_cpus(observed.rules, observed.promises, entry.pod, container.name)
    partition = _find_partition(observed, own)
    closed = "systemd" if observed.closing is not None and observed.closing.kind is None else None
    if partition in {PartitionKind.ROOT.value, PartitionKind.ISOLATED.value}:
        closed = "partition"
    held = observed.promises.of_pod(uid)
    return {
        "cgroup": observed.view.shown_cgroup(observed.path),
        **container_fields(observed.view, held, container.name),
        "closedToHost": closed,
        "near": list(observed.container.near),
        "coreClasses": list(topology.classes_of(own or CpuSet())),
        "degraded": lacking > 0 or (own is not None and not own <= topology.online),
        "differs": observed.is_different,
        "effective": None if observed.cgroup is None else describe_kernel_values(observed.cgroup, observed.cpuset),
        "exit": _describe_exit(status.exit),
        "hadCPUs": None if status.had_cpus is None else str(status.had_cpus),
        "isolation": None if level is None else level.value,
        "kind": container.kind.value,
        "lastExit": _describe_exit(status.last_exit),
        "name": container.name,
        "notes": _list_notes(observed, own, level, lacking),
        "partition": partition,
        "oomKills": max(status.oom_kills_seen, 0 if observed.cgroup is None else observed.cgroup.oom_kills),
        "pid": (observed.view.pids or {}).get(run_id(entry, status)) if status.is_started else None,
        "places": [dict(place) for place in places.find(used_cpus)] if used_cpus else [],
        "processes": observed.process_count,
        "promised": promised_fields(held, container.name),
        "restarts": status.restarts,
        "settings": to_builtins(observed.process_settings) if container.is_launched else {},
        "starved": observed.is_starved,
        "state": _describe_state(observed),
        "unit": container.unit or None,
        "whyShared": _explain_sharing(observed, level, why),
    }


def _find_partition(observed: ContainerView, own: CpuSet | None) -> str | None:
    """Return the type of the cpuset partition in which the container runs. The partition is the container's own cgroup or, if that isn't
    one, the pod's cgroup. None means that neither is a partition.
    """
    cgroups = observed.view.observed.cgroups or {}
    for path in (observed.path, observed.entry.pod_path) if own else ():
        cgroup = cgroups.get(path)
        found = cgroup.get(Attribute.CPUSET_CPUS_PARTITION) if cgroup else None
        if isinstance(found, Partition) and found.kind is not PartitionKind.MEMBER:
            return format_value(found)
    return None


def describe_kernel_values(observed: ObservedCgroup, cpuset: ObservedCgroup | None) -> Document:
    """Describe the kernel's values for a container's cgroup. CPUs and memory nodes are those of the cgroup whose cpuset applies to the
    container.

    Null means that the value's controller isn't enabled.
    """
    quota, memory = observed.get(Attribute.CPU_MAX), observed.get(Attribute.MEMORY_MAX)
    return {
        "cpus": None if cpuset is None or cpuset.cpus_effective is None else str(cpuset.cpus_effective),
        "frozen": observed.is_frozen,
        "memoryMaxBytes": memory.limit_bytes if isinstance(memory, ByteLimit) else None,
        "mems": None if cpuset is None or cpuset.mems_effective is None else str(cpuset.mems_effective),
        "quota": None
        if not isinstance(quota, CpuMax)
        else {
            "cpuMax": format_value(quota),
            "limitMillicores": None if quota.quota_us is None else quota.quota_us * 1000 // quota.period_us,
            "periodMicroseconds": quota.period_us,
            "quotaMicroseconds": quota.quota_us,
        },
        "weight": observed.get(Attribute.CPU_WEIGHT),
    }


def _describe_exit(ended: Exit | None) -> Document | None:
    if ended is None:
        return None
    return {
        "code": ended.code,
        "finishedAtMs": ended.finished_at_ms,
        "oomKilled": ended.is_oom_kill,
        "reason": ended.reason,
        "signal": ended.signal,
        "startError": ended.start_error,
    }


def _describe_state(observed: ContainerView) -> Document:
    """Describe the container's state: Waiting, Running, Exited, Unknown, or Open for a container without a command."""
    name, reason = _find_state(observed)
    status = observed.status
    next_start_ms = None
    if reason == "CrashLoopBackOff":
        next_start_ms = next_start_at_ms(observed.entry, observed.container, status)
    return {
        "killAtMs": status.stop_by_ms if observed.is_populated else None,
        "name": name,
        "nextStartAtMs": next_start_ms,
        "reason": reason,
        "startedAtMs": status.started_at_ms,
    }


def _find_state(observed: ContainerView) -> tuple[str, str | None]:
    entry, status = observed.entry, observed.status
    if observed.container.unit:
        return _find_unit_state(observed)
    if entry.is_requested_per_container:
        return ("Running", None) if observed.is_populated else ("Waiting", "ContainerCreating")
    if observed.container.is_launched and status.exit is not None:
        next_start_ms = next_start_at_ms(entry, observed.container, status)
        if next_start_ms is None:
            return "Exited", status.exit.reason
        return "Waiting", "CrashLoopBackOff" if next_start_ms > observed.view.observed.at_ms else "Restarting"
    runs = _is_running(observed)
    if observed.container.is_launched and runs is None:
        return "Unknown", None
    if observed.container.is_launched and not runs:
        if not entry.is_active or entry.deleting_since_ms is not None:
            return "Exited", "NeverStarted" if status.attempt == 0 else "NotYetObserved"
        if status.started_at_ms is not None:
            return "Exited", "NotYetObserved"
        if observed.is_starved:
            return "Waiting", "Starved"
        return "Waiting", "PodInitializing" if _waits_for_init(observed) else "ContainerCreating"
    name = "Running" if observed.container.is_launched else "Open"
    if observed.is_starved:
        return name, "Starved"
    return name, "Stopping" if status.stop_by_ms is not None and observed.is_populated else None


def _find_unit_state(observed: ContainerView) -> tuple[str, str | None]:
    """Return the state of the systemd unit, and the reason if the state is Waiting. A unit without processes counts as inactive."""
    if observed.view.observed.cgroups is None:
        return "Unknown", None
    if observed.cgroup is None:
        return "Waiting", "UnitUnknown"
    if observed.cgroup.unit is None:
        return "Unknown", None  # systemd has not answered
    return ("Running", None) if observed.is_populated else ("Waiting", "UnitInactive")


def _is_running(observed: ContainerView) -> bool | None:
    """Return whether the container runs, according to its cgroup. If cgroups weren't read, use the launcher's report instead. None means
    that the answer is unknown.
    """
    status = observed.status
    if not status.is_started or observed.view.observed.cgroups is not None:
        return status.is_started and observed.is_populated
    if observed.view.pids is not None:
        return run_id(observed.entry, status) in observed.view.pids
    return False if status.started_at_ms is None else None


def _waits_for_init(observed: ContainerView) -> bool:
    """Return whether an earlier init container has not finished, or an earlier sidecar has not started."""
    for container, status in observed.entry.pairs():
        if container.name == observed.container.name:
            return False
        if container.kind is ContainerKind.INIT and not (status.exit is not None and status.exit.is_success):
            return True
        if container.kind is ContainerKind.SIDECAR and status.started_at_ms is None:
            return True
    return False


def _explain_sharing(observed: ContainerView, level: Isolation | None, why: WhyShared | None) -> str | None:
    if level is None or level.has_own_cpus:
        return None
    if why is None and observed.entry.idle is not None:
        refusal = observed.entry.idle.refusal
        return f"its CPUs were released: {'its unit is not active' if refusal is None else refusal.message}"
    if level is Isolation.POD:
        return "it runs in its pod's shared pool" + ("" if why is None else f": {why.value}")
    return "no exclusive CPUs were available for it when the state was recovered" if why is None else why.value


def _list_notes(observed: ContainerView, own: CpuSet | None, level: Isolation | None, lacking: int) -> list[str]:
    """List notes about a container, such as lost CPUs or missing isolation, one sentence each."""
    notes, online = [], observed.view.node.topology.online
    if lacking:
        notes.append(
            f"degraded: it lost {lacking} of its CPUs in a recovery of the state; remove its manifest and add it again when they are free"
        )
    if own is not None and not own <= online:
        notes.append(
            f"degraded: its CPUs {own - online} are offline"
            + ("" if own & online or observed.is_starved else "; it runs in the shared pool until they return")
        )
    if observed.is_starved:
        notes.append("starved: no CPU is left for it, so it is frozen until the shared pool has a CPU")
    unspread, why = (own or CpuSet()) & observed.view.node.topology.isolated & online, "isolcpus"
    if not unspread and _find_partition(observed, own) == PartitionKind.ISOLATED.value:
        unspread, why = (own or CpuSet()) & online, "by the pod's annotation"
    if observed.entry.is_active and len(unspread) > 1:
        notes.append(
            f"CPUs {unspread} are isolated ({why}): the kernel spreads no load over them, "
            "so pin each process or thread to its own CPU (taskset -c)"
        )
    if observed.container.is_launched and observed.status.exit is not None and observed.is_populated:
        notes.append("processes are left after its main process has ended")
    notes += _list_missing_isolation(observed, level)
    settings = observed.process_settings
    if observed.entry.is_active and settings != ProcessSettings() and not observed.container.is_launched:
        notes.append(
            "no settings of the process: only processes that the agent starts have them, so containers with a command"
        )
    elif observed.entry.is_active and settings.is_of_real_time and level is not Isolation.CONTAINER:
        notes.append(
            f"without the scheduling policy {settings.scheduler}, which only containers with CPUs of their own have"
        )
    root = (observed.view.observed.cgroups or {}).get("")
    if observed.entry.is_active and root is not None and not observed.entry.is_requested_per_container:
        notes += _list_unlimited_hugepages(observed, root.controllers)
    return notes


def _list_missing_isolation(observed: ContainerView, level: Isolation | None) -> list[str]:
    """Describe each kind of isolation from the host that is requested but isn't in effect, and say why."""
    if level is None:
        return []
    pod, config, kernel = observed.entry.pod, observed.view.node.config, observed.view.kernel
    notes = []
    closing = observed.closing
    if closing is not None and closing.kind is None and kernel is not None and kernel.path_to_partitions:
        notes.append(f"no partition, so systemd keeps the host off its CPUs (AllowedCPUs): {closing.why}")
    if pod.is_isolated and level.has_own_cpus:
        if config.host_isolation == "none":
            notes.append("no isolated partition, although its annotation requests one: hostIsolation is none")
        elif kernel is not None and not kernel.path_to_partitions:
            notes.append("no isolated partition, although its annotation requests one: this needs kernel 6.7 or later")
    if observed.container.interrupts and config.interrupt_isolation == "none":
        devices = ", ".join(observed.container.interrupts)
        notes.append(
            f"the interrupts of {devices} aren't moved to its CPUs, although its annotation requests it: interruptIsolation is none"
        )
    return notes


def _list_unlimited_hugepages(observed: ContainerView, controllers: frozenset[str]) -> list[str]:
    gate = observed.rules.placement.gate("PodLevelResources")
    limits = container_cgroup_amounts(observed.entry.pod, observed.container, pod_level_resources=gate).hugepage_limits
    if not limits:
        return []
    names = ", ".join(name for name, _ in limits)
    why = (
        "the agent sets no hugetlb limits" if "hugetlb" in controllers else "the pods' cgroup has no hugetlb controller"
    )
    return [f"{names}: the limit is not enforced, {why}"]
