"""One container of an inspection: what it does, what it was promised, what the kernel gives it, where that lies, and why it shares."""

from typing import Any

from msgspec import Struct

from nodeagent.core.admission.managers import Managers, isolation
from nodeagent.core.cgroups.desired_cgroups import container_path
from nodeagent.core.model.cgroup import Attribute, ByteLimit, CpuMax, DesiredCgroup, ObservedCgroup
from nodeagent.core.model.demand import why_shared
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Container, ContainerKind
from nodeagent.core.model.pod_resources import container_cgroup_amounts
from nodeagent.core.model.promises import Isolation, Promises
from nodeagent.core.model.state import ContainerStatus, Exit, PodEntry, run_id
from nodeagent.core.turn.lifecycle import next_start_at_ms
from nodeagent.core.turn.recovery import lacking_cpus
from nodeagent.formats.kernel.cgroup_values import print_value
from nodeagent.formats.node_view import NodeView
from nodeagent.views.wording.cpu_places import Places

Document = dict[str, Any]


class ContainerView(Struct, frozen=True):
    """One container of a node that was looked at."""

    view: NodeView
    entry: PodEntry
    container: Container
    status: ContainerStatus
    desired: DesiredCgroup | None
    """None: its cgroup is to hold nothing, or nobody could look."""
    is_different: bool
    """Its cgroup differs from what was promised."""

    @property
    def path(self) -> str:
        return container_path(self.entry, self.container.name)

    @property
    def managers(self) -> Managers:
        return self.view.node.managers

    @property
    def promises(self) -> Promises:
        return self.view.state.promises

    @property
    def cgroup(self) -> ObservedCgroup | None:
        return (self.view.seen.cgroups or {}).get(self.path)

    @property
    def is_populated(self) -> bool:
        return self.cgroup is not None and self.cgroup.is_populated

    @property
    def is_starved(self) -> bool:
        return self.desired is not None and self.desired.is_starved

    @property
    def process_count(self) -> int | None:
        """None: nobody could look."""
        if self.view.seen.cgroups is None:
            return None
        return self.view.seen.process_counts.get(self.path) if self.path in self.view.seen.cgroups else 0


def container_document(seen: ContainerView, places: Places) -> Document:
    entry, container, status = seen.entry, seen.container, seen.status
    uid, topology = entry.pod.uid, seen.view.node.topology
    own = seen.promises.own_set(uid, container.name)
    level = isolation(seen.managers, seen.promises, entry.pod, container.name) if entry.is_active else None
    nodes = seen.promises.memory_nodes(uid, container.name)
    usable = own & topology.online if own is not None else CpuSet()
    lie = usable or (seen.cgroup.cpus_effective if seen.cgroup is not None else None)
    lacking = lacking_cpus(seen.managers, seen.promises, entry.pod, container.name) if entry.is_active else 0
    return {
        "cgroup": seen.path,
        "degraded": lacking > 0 or (own is not None and not own <= topology.online),
        "differs": seen.is_different,
        "effective": None if seen.cgroup is None else kernel_values(seen.cgroup),
        "exit": _exit(status.exit),
        "hadCPUs": None if status.had_cpus is None else str(status.had_cpus),
        "isolation": None if level is None else level.value,
        "kind": container.kind.value,
        "lastExit": _exit(status.last_exit),
        "name": container.name,
        "notes": _notes(seen, own, lacking),
        "oomKills": max(status.oom_kills_seen, 0 if seen.cgroup is None else seen.cgroup.oom_kills),
        "pid": (seen.view.pids or {}).get(run_id(entry, status)) if status.is_started else None,
        "places": [dict(place) for place in places.of(lie)] if lie else [],
        "processes": seen.process_count,
        "promised": {"cpus": None if own is None else str(own), "mems": None if nodes is None else str(nodes)},
        "restarts": status.restarts,
        "starved": seen.is_starved,
        "state": _state(seen),
        "whyShared": _why_shared(seen, level),
    }


def kernel_values(seen: ObservedCgroup) -> Document:
    """What the kernel has for a cgroup; null: its controller is not enabled there."""
    quota, memory = seen.get(Attribute.CPU_MAX), seen.get(Attribute.MEMORY_MAX)
    return {
        "cpus": None if seen.cpus_effective is None else str(seen.cpus_effective),
        "frozen": seen.is_frozen,
        "memoryMaxBytes": memory.limit_bytes if isinstance(memory, ByteLimit) else None,
        "mems": None if seen.mems_effective is None else str(seen.mems_effective),
        "quota": _quota(quota) if isinstance(quota, CpuMax) else None,
        "weight": seen.get(Attribute.CPU_WEIGHT),
    }


def _quota(quota: CpuMax) -> Document:
    limit = None if quota.quota_us is None else quota.quota_us * 1000 // quota.period_us
    return {
        "cpuMax": print_value(quota),
        "limitMillicores": limit,
        "periodMicroseconds": quota.period_us,
        "quotaMicroseconds": quota.quota_us,
    }


def _exit(ended: Exit | None) -> Document | None:
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


def _state(seen: ContainerView) -> Document:
    """Waiting, Running, Exited, Unknown as in Kubernetes; Open is a container without a command, which others enter."""
    name, reason = _state_and_reason(seen)
    status = seen.status
    return {
        "killAtMs": status.stop_by_ms if seen.is_populated else None,
        "name": name,
        "nextStartAtMs": next_start_at_ms(seen.entry, status.name) if reason == "CrashLoopBackOff" else None,
        "reason": reason,
        "startedAtMs": status.started_at_ms,
    }


def _state_and_reason(seen: ContainerView) -> tuple[str, str | None]:
    entry, status = seen.entry, seen.status
    if seen.container.command and status.exit is not None:
        return _ended(seen, status.exit)
    runs = _runs(seen)
    if seen.container.command and runs is None:
        return "Unknown", None
    if seen.container.command and not runs:
        if not entry.is_active or entry.deleting_since_ms is not None:
            return "Exited", "NeverStarted" if status.attempt == 0 else "NotYetObserved"
        if status.started_at_ms is not None:
            return "Exited", "NotYetObserved"
        return "Waiting", "Starved" if seen.is_starved else "PodInitializing" if _waits_for_init(
            seen
        ) else "ContainerCreating"
    reason = (
        "Starved" if seen.is_starved else "Stopping" if status.stop_by_ms is not None and seen.is_populated else None
    )
    return ("Running" if seen.container.command else "Open"), reason


def _runs(seen: ContainerView) -> bool | None:
    """It was started and its cgroup has processes; where one can't look, the launcher has one. None: neither can be asked."""
    status = seen.status
    if not status.is_started or seen.view.seen.cgroups is not None:
        return status.is_started and seen.is_populated
    if seen.view.pids is not None:
        return run_id(seen.entry, status) in seen.view.pids
    return False if status.started_at_ms is None else None


def _ended(seen: ContainerView, ended: Exit) -> tuple[str, str | None]:
    next_start_ms = next_start_at_ms(seen.entry, seen.status.name)
    if next_start_ms is None:
        return "Exited", ended.reason
    return "Waiting", "CrashLoopBackOff" if next_start_ms > seen.view.seen.at_ms else "Restarting"


def _waits_for_init(seen: ContainerView) -> bool:
    """An init container or sidecar before it has not done its part."""
    for container, status in seen.entry.pairs():
        if container.name == seen.container.name:
            return False
        if container.kind is ContainerKind.INIT and not (status.exit is not None and status.exit.is_success):
            return True
        if container.kind is ContainerKind.SIDECAR and status.started_at_ms is None:
            return True
    return False


def _why_shared(seen: ContainerView, level: Isolation | None) -> str | None:
    if level in {None, Isolation.CONTAINER}:
        return None
    why = why_shared(seen.managers.placement, seen.entry.pod, seen.container)
    if level is Isolation.POD:
        return "it runs in its pod's shared pool" + ("" if why is None else f": {why.value}")
    return "it could not be given CPUs of its own when the state was recovered" if why is None else why.value


def _notes(seen: ContainerView, own: CpuSet | None, lacking: int) -> list[str]:
    """What else a person should know, one sentence each."""
    notes, online = [], seen.view.node.topology.online
    if lacking:
        notes.append(
            f"degraded: a recovery of the state had {lacking} too few CPUs for it; remove its manifest and add it again when they are free"
        )
    if own is not None and not own <= online:
        notes.append(
            f"degraded: its CPUs {own - online} are offline"
            + ("" if own & online else "; it runs in the shared pool until they return")
        )
    if seen.is_starved:
        notes.append("starved: no CPU is left for it, so it is frozen until the shared pool has one")
    unspread = (own or CpuSet()) & seen.view.node.topology.isolated & online
    if seen.entry.is_active and len(unspread) > 1:
        notes.append(
            f"CPUs {unspread} are isolated (isolcpus): the kernel spreads no load over them, "
            "so give each process or thread its own (taskset -c)"
        )
    if seen.container.command and seen.status.exit is not None and seen.is_populated:
        notes.append("processes are left after its main one has ended")
    root = (seen.view.seen.cgroups or {}).get("")
    if seen.entry.is_active and root is not None:
        notes += _unlimited_hugepages(seen, root.controllers)
    return notes


def _unlimited_hugepages(seen: ContainerView, controllers: frozenset[str]) -> list[str]:
    gate = seen.managers.placement.gate("PodLevelResources")
    limits = container_cgroup_amounts(seen.entry.pod, seen.container, pod_level_resources=gate).hugepage_limits
    if not limits:
        return []
    names = ", ".join(name for name, _ in limits)
    why = (
        "the agent sets no hugetlb limits" if "hugetlb" in controllers else "the pods' cgroup has no hugetlb controller"
    )
    return [f"{names}: the limit is not enforced, {why}"]
