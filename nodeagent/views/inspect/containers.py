"""One container of an inspection: what it does, what it was promised, what the kernel gives it, where that lies, and why it shares."""

from collections.abc import Mapping
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
from nodeagent.views.wording.cpu_places import Places

Document = dict[str, Any]


class ContainerSight(Struct, frozen=True):
    """All that was found out about one container."""

    entry: PodEntry
    container: Container
    status: ContainerStatus
    promises: Promises
    managers: Managers
    wish: DesiredCgroup | None
    seen: ObservedCgroup | None
    controllers: frozenset[str] | None
    """Of the pods' cgroup; None: unknown."""
    is_seen: bool
    """Somebody looked at the cgroups."""
    is_different: bool
    """Its cgroup differs from what was promised."""
    pids: Mapping[str, int] | None
    """Main processes by run id. None: the launcher did not say."""
    process_count: int | None
    """None: nobody could look."""
    now_ms: int

    @property
    def is_populated(self) -> bool:
        return self.seen is not None and self.seen.is_populated


def container_document(sight: ContainerSight, places: Places) -> Document:
    entry, container, status = sight.entry, sight.container, sight.status
    uid, topology = entry.pod.uid, sight.managers.topology
    own = sight.promises.own_set(uid, container.name)
    level = isolation(sight.managers, sight.promises, entry.pod, container.name) if entry.is_active else None
    nodes = sight.promises.memory_nodes(uid, container.name)
    usable = own & topology.online if own is not None else CpuSet()
    lie = usable or (sight.seen.cpus_effective if sight.seen is not None else None)
    is_starved = sight.wish is not None and sight.wish.is_starved
    lacking = lacking_cpus(sight.managers, sight.promises, entry.pod, container.name) if entry.is_active else 0
    return {
        "cgroup": container_path(entry, container.name),
        "degraded": lacking > 0 or (own is not None and not own <= topology.online),
        "differs": sight.is_different,
        "effective": None if sight.seen is None else kernel_values(sight.seen),
        "exit": _exit(status.exit),
        "hadCPUs": None if status.had_cpus is None else str(status.had_cpus),
        "isolation": None if level is None else level.value,
        "kind": container.kind.value,
        "lastExit": _exit(status.last_exit),
        "name": container.name,
        "notes": _notes(sight, own, lacking),
        "oomKills": max(status.oom_kills_seen, 0 if sight.seen is None else sight.seen.oom_kills),
        "pid": (sight.pids or {}).get(run_id(entry, status)) if status.is_started else None,
        "places": [dict(place) for place in places.of(lie)] if lie else [],
        "processes": sight.process_count,
        "promised": {"cpus": None if own is None else str(own), "mems": None if nodes is None else str(nodes)},
        "restarts": status.restarts,
        "starved": is_starved,
        "state": _state(sight, is_starved=is_starved),
        "whyShared": _why_shared(sight, level),
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


def _state(sight: ContainerSight, *, is_starved: bool) -> Document:
    """Waiting, Running, Exited, Unknown as in Kubernetes; Open is a container without a command, which others enter."""
    name, reason = _state_and_reason(sight, is_starved=is_starved)
    status = sight.status
    return {
        "killAtMs": status.stop_by_ms if sight.is_populated else None,
        "name": name,
        "nextStartAtMs": next_start_at_ms(sight.entry, status.name) if reason == "CrashLoopBackOff" else None,
        "reason": reason,
        "startedAtMs": status.started_at_ms,
    }


def _state_and_reason(sight: ContainerSight, *, is_starved: bool) -> tuple[str, str | None]:
    entry, status = sight.entry, sight.status
    if sight.container.command and status.exit is not None:
        return _ended(sight, status.exit)
    runs = _runs(sight)
    if sight.container.command and runs is None:
        return "Unknown", None
    if sight.container.command and not runs:
        if not entry.is_active or entry.deleting_since_ms is not None:
            return "Exited", "NeverStarted" if status.attempt == 0 else "NotYetObserved"
        if status.started_at_ms is not None:
            return "Exited", "NotYetObserved"
        return "Waiting", "Starved" if is_starved else "PodInitializing" if _waits_for_init(
            sight
        ) else "ContainerCreating"
    reason = "Starved" if is_starved else "Stopping" if status.stop_by_ms is not None and sight.is_populated else None
    return ("Running" if sight.container.command else "Open"), reason


def _runs(sight: ContainerSight) -> bool | None:
    """It was started and its cgroup has processes; where one can't look, the launcher has one. None: neither can be asked."""
    status = sight.status
    if not status.is_started or sight.is_seen:
        return status.is_started and sight.is_populated
    if sight.pids is not None:
        return run_id(sight.entry, status) in sight.pids
    return False if status.started_at_ms is None else None


def _ended(sight: ContainerSight, ended: Exit) -> tuple[str, str | None]:
    next_start_ms = next_start_at_ms(sight.entry, sight.status.name)
    if next_start_ms is None:
        return "Exited", ended.reason
    return "Waiting", "CrashLoopBackOff" if next_start_ms > sight.now_ms else "Restarting"


def _waits_for_init(sight: ContainerSight) -> bool:
    """An init container or sidecar before it has not done its part."""
    for container, status in sight.entry.pairs():
        if container.name == sight.container.name:
            return False
        if container.kind is ContainerKind.INIT and not (status.exit is not None and status.exit.is_success):
            return True
        if container.kind is ContainerKind.SIDECAR and status.started_at_ms is None:
            return True
    return False


def _why_shared(sight: ContainerSight, level: Isolation | None) -> str | None:
    if level in {None, Isolation.CONTAINER}:
        return None
    why = why_shared(sight.managers.placement, sight.entry.pod, sight.container)
    if level is Isolation.POD:
        return "it runs in its pod's shared pool" + ("" if why is None else f": {why.value}")
    return "it could not be given CPUs of its own when the state was recovered" if why is None else why.value


def _notes(sight: ContainerSight, own: CpuSet | None, lacking: int) -> list[str]:
    """What else a person should know, one sentence each."""
    notes, online = [], sight.managers.topology.online
    if lacking:
        notes.append(
            f"degraded: a recovery of the state had {lacking} too few CPUs for it; remove its manifest and add it again when they are free"
        )
    if own is not None and not own <= online:
        notes.append(
            f"degraded: its CPUs {own - online} are offline"
            + ("" if own & online else "; it runs in the shared pool until they return")
        )
    if sight.wish is not None and sight.wish.is_starved:
        notes.append("starved: no CPU is left for it, so it is frozen until the shared pool has one")
    if sight.container.command and sight.status.exit is not None and sight.is_populated:
        notes.append("processes are left after its main one has ended")
    if sight.entry.is_active and sight.controllers is not None:
        notes += _unlimited_hugepages(sight, sight.controllers)
    return notes


def _unlimited_hugepages(sight: ContainerSight, controllers: frozenset[str]) -> list[str]:
    gate = sight.managers.placement.gate("PodLevelResources")
    limits = container_cgroup_amounts(sight.entry.pod, sight.container, pod_level_resources=gate).hugepage_limits
    if not limits:
        return []
    names = ", ".join(name for name, _ in limits)
    why = (
        "the agent sets no hugetlb limits" if "hugetlb" in controllers else "the pods' cgroup has no hugetlb controller"
    )
    return [f"{names}: the limit is not enforced, {why}"]
