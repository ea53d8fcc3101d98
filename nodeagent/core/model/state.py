"""The node's state as one immutable value, with all promises and all known pods. This module neither defines a file format nor makes
decisions.
"""

import enum
from collections.abc import Iterator, Mapping
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.cgroup_layout import pinned_pod_path, pod_path
from nodeagent.core.model.derived import find_replaced
from nodeagent.core.model.digest import sha256_hex
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import OWN, SYSTEMD, Container, ContainerKind, Pod, QosClass, RestartPolicy
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import OF_QUEUE
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.core.model.waiting import RequestKind, Retry, Waiting


class Phase(enum.Enum):
    """Kubernetes' pod phases, plus a phase for a pod that is being ended."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TERMINATING = "Terminating"


class Exit(Struct, frozen=True):
    """End of a container's main process. If both code and signal are missing, nobody observed how it ended."""

    finished_at_ms: int
    code: int | None = None
    signal: int | None = None
    is_oom_kill: bool = False
    start_error: str | None = None
    """Reason why the process couldn't be started."""

    @property
    def is_success(self) -> bool:
        return self.code == 0

    @property
    def reason(self) -> str:
        """Return Kubernetes' `reason` for such an end, for instance OOMKilled."""
        if self.is_oom_kill:
            return "OOMKilled"
        if self.start_error is not None:
            return "StartError"
        if self.code is None and self.signal is None:
            return "ContainerStatusUnknown"
        return "Completed" if self.is_success else "Error"


class ContainerStatus(Struct, frozen=True):
    name: str
    attempt: int = 0
    """Number of starts so far. A start is counted when it is decided. The launcher identifies the current start by its `run_id`."""
    started_at_ms: int | None = None
    """Start time of the current attempt, once the launcher has confirmed the start."""
    exit: Exit | None = None
    """End of the current attempt. None means that the attempt hasn't ended."""
    last_exit: Exit | None = None
    """End of the previous attempt."""
    backoff_step: int = 0
    """Number of consecutive restarts after short runs. It determines the wait before the next restart: 0, 10, 20, 40 … 300 s."""
    stop_by_ms: int | None = None
    """Time at which a container that is being stopped is killed (`cgroup.kill`). None means that it isn't being stopped."""
    is_to_restart: bool = False
    """Whether the container is being stopped only to apply new amounts. It then starts again at once, regardless of the pod's restart
    policy.
    """
    oom_kills_seen: int = 0
    """Value of the cgroup's oom_kill counter at the last decision, or at the end of the last attempt. Restarts don't reset the counter."""
    had_cpus: CpuSet | None = None
    """Exclusive CPUs that the container had until the pod finished. Other pods may have them now. None means that the pod hasn't
    finished, or had no exclusive CPUs.
    """
    unit_before: UnitSettings | None = None
    """Settings to restore for the container's unit. None means that the container pins no unit, or that the unit was neither observed
    nor changed yet.
    """
    cgroup: str | None = None
    """Absolute path of the container's cgroup, if a container runtime created it. None means that the cgroup is below the pods' cgroup."""

    @property
    def restarts(self) -> int:
        return max(0, self.attempt - 1)

    @property
    def is_started(self) -> bool:
        """Whether a start was decided, and the end of this attempt hasn't been observed."""
        return self.attempt > 0 and self.exit is None

    @property
    def is_running(self) -> bool:
        """Whether the current attempt was observed running, and its end hasn't been observed."""
        return self.started_at_ms is not None and self.exit is None

    @property
    def was_running(self) -> bool:
        """Whether at least one attempt was observed running."""
        return self.started_at_ms is not None or self.restarts > 0


class RefusedChange(Struct, frozen=True):
    """A refused change of a pod's manifest. The pod keeps running unchanged (D7)."""

    pod: Pod
    refusal: Waiting


class Idle(Struct, frozen=True):
    """State of a pod that has released all its holdings, because none of its units is active."""

    refusal: Waiting | None = None
    """Refusal to resume the pod although one of its units is active. The pod is decided again once there is more room. None means that
    the pod wasn't refused.
    """


MANIFEST_DIRECTORY = "manifests"
"""Name of the source of manifests. Every node has this source."""
JOBS = "jobs"
"""Name of the source of jobs. A job lasts no longer than the process that requested it."""


class Origin(Struct, frozen=True):
    """Origin of a pod. It consists of the source, the source's key for the pod, and the domain."""

    name: str
    """Key of the pod in its source. In the manifest directory, the key is the file name."""
    source: str = MANIFEST_DIRECTORY
    domain: str = OWN
    """Domain of the pod's cgroups and processes. A pod of the agent's own domain may still pin systemd units."""


UnitKey = tuple[str, str]
"""Domain and name of a unit. Units of different domains can have the same name."""


def list_unit_keys(pod: Pod, origin: Origin) -> frozenset[UnitKey]:
    """Return the units that a pod of this origin pins."""
    domain = SYSTEMD if origin.domain == OWN else origin.domain
    return frozenset((domain, unit) for unit in pod.units)


class PodEntry(Struct, frozen=True, dict=True):
    """A pod that was decided, and is therefore either refused or admitted. An admitted pod keeps its promises until it is gone or
    finished.
    """

    pod: Pod
    qos: QosClass
    """QoS class at the time of the decision. The path of the pod's cgroup depends on it."""
    origin: Origin
    decided_at_ms: int
    refusal: Waiting | None = None
    containers: tuple[ContainerStatus, ...] = ()
    """Statuses of all containers in the pod's order. A refused pod has none."""
    deleting_since_ms: int | None = None
    is_released: bool = False
    """Whether the pod was ended on request (`nodeagent release`). If so, its manifest doesn't start it again."""
    refused_change: RefusedChange | None = None
    """Refused change of the pod's manifest. None means that no change was refused."""
    idle: Idle | None = None
    """State of an idle pod. None means that the pod isn't idle. An active pod then has its holdings."""
    outcome: Phase | None = None
    """Final phase, SUCCEEDED or FAILED, once no container will run again. The holdings are then released, but exit codes stay visible.
    None means that the pod hasn't finished.
    """
    is_pooled: bool = False
    """Whether the pod's cgroup is below the shared pool's cgroup. The cgroup never moves while the pod exists."""

    @property
    def change_refusal(self) -> Waiting | None:
        """Return the refusal of the pod's changed manifest. None means that no change was refused."""
        return None if self.refused_change is None else self.refused_change.refusal

    @property
    def idle_refusal(self) -> Waiting | None:
        """Return the refusal to resume the pod although one of its units is active. None means that there is no such refusal."""
        return None if self.idle is None else self.idle.refusal

    @cached_property
    def waiting(self) -> tuple[tuple[RequestKind, Waiting], ...]:
        """Return all unmet requests of the pod."""
        if self.refusal is None and self.refused_change is None and self.idle is None:
            return ()  # this property is read for each pod in each turn, so the empty case returns early
        found = (
            (RequestKind.POD, self.refusal),
            (RequestKind.CHANGE, self.change_refusal),
            (RequestKind.RESUME, self.idle_refusal),
        )
        return tuple((asked, waiting) for asked, waiting in found if waiting is not None)

    @property
    def is_undecided(self) -> bool:
        """Whether the pod waits for the answer of a device plugin. The pod is decided after the answer."""
        return any(waiting.is_undecided for _, waiting in self.waiting) and not self.is_requested_per_container

    @property
    def is_queued(self) -> bool:
        """Whether the pod is a job that waits in the queue. Such a pod needs no attention."""
        return self.refusal is not None and self.refusal.reason in OF_QUEUE

    def list_retries(self, kind: RequestKind, *, for_room: bool) -> tuple[Retry, ...]:
        """Return the events after which an unmet request is tried again. The result is empty if the request is met.

        Args:
            kind: the request.
            for_room: whether pods that were refused for lack of resources are tried again (`Config.retries_for_room`).
        """
        waiting = dict(self.waiting).get(kind)
        if waiting is None:
            return ()
        asked = RequestKind.CONTAINER if self.is_requested_per_container else kind
        return waiting.retries(asked, requests_devices=self.pod.asks_for_devices, for_room=for_room)

    @cached_property
    def is_active(self) -> bool:
        """Whether the pod was admitted and hasn't finished."""
        return self.refusal is None and self.outcome is None

    @property
    def expected_statuses(self) -> tuple[str, ...]:
        """Return the names of the containers that must have a status. These are all containers of an admitted pod, and none of a refused
        pod.
        """
        return () if self.refusal else tuple(container.name for container in self.pod.containers)

    @cached_property
    def has_expected_statuses(self) -> bool:
        return tuple(status.name for status in self.containers) == self.expected_statuses

    @cached_property
    def is_conspicuous(self) -> bool:
        """Whether the pod may need a user's attention, because a request is unmet or a container has ended."""
        return bool(self.waiting) or any(status.exit is not None for status in self.containers)

    @cached_property
    def holds(self) -> bool:
        """Whether the pod has its holdings, that is, whether it is active and not idle."""
        return self.is_active and self.idle is None

    @property
    def phase(self) -> Phase:
        if self.refusal is not None:
            return Phase.PENDING if self.is_queued else Phase.FAILED
        if self.deleting_since_ms is not None:
            return Phase.TERMINATING
        if self.outcome is not None:
            return self.outcome
        return Phase.RUNNING if all(_has_begun(c, s) for c, s in self.pairs()) else Phase.PENDING

    @cached_property
    def is_requested_per_container(self) -> bool:
        """Whether another program requests the pod's containers one by one. Such a pod has no manifest."""
        return self.origin.domain != OWN and not self.pins_units

    @property
    def keeps_without_processes(self) -> bool:
        """Whether the pod keeps its allocation even without processes, because another program may start a process at any time."""
        return self.pins_units or self.is_requested_per_container

    @property
    def own_cgroup(self) -> str | None:
        """Return the path of the pod's own cgroup. None means that the pod pins units, whose cgroups are elsewhere."""
        return None if self.pins_units else self.pod_path

    @cached_property
    def pod_path(self) -> str:
        """Return the path of the pod's cgroup, relative to the pods' cgroup.

        If the pod pins units, no cgroup exists at this path. The path of a container runtime's pod is absolute, if it is known.
        """
        if self.pins_units:
            return pinned_pod_path(self.domain, self.pod.uid)
        known = next((status.cgroup for status in self.containers if status.cgroup), None)
        own = pod_path(self.qos, self.pod.uid, is_pooled=self.is_pooled)
        return own if known is None else known.rpartition("/")[0]

    @cached_property
    def pins_units(self) -> bool:
        """Whether the pod's containers pin units (D30). The agent then only watches the units' processes, and another program such as
        systemd runs them.
        """
        # This property is read for each pod in each turn. So only the first container is examined: if it pins a unit, all of them do.
        containers = self.pod.containers
        return bool(containers) and bool(containers[0].unit)

    @cached_property
    def unit_keys(self) -> frozenset[UnitKey]:
        """Return the units that the pod pins."""
        return list_unit_keys(self.pod, self.origin)

    @cached_property
    def domain(self) -> str:
        """Return the name of the domain that owns the pod's cgroups and processes."""
        return SYSTEMD if self.origin.domain == OWN and self.pins_units else self.origin.domain

    def container_path(self, name: str) -> str:
        """Return the path of a container's cgroup, relative to the pods' cgroup.

        The path of a pinned unit stands for the unit's cgroup. The path of a container runtime's container is absolute.
        """
        return self.container_paths[name]

    @cached_property
    def is_placed_as_pool(self) -> bool:
        """Whether the containers have only the shared pool's CPUs and memory nodes. They can then read the pool's placement file."""
        return self.is_pooled and not self.pod.asks_for_devices and not self.pod.claims

    @cached_property
    def paths_of_runs(self) -> Mapping[str, str]:
        """Return the path of each container's cgroup, by the run ID of its current attempt."""
        return {run_id(self, status): self.container_path(status.name) for status in self.containers}

    @cached_property
    def container_paths(self) -> Mapping[str, str]:
        """Return the path of each container's cgroup, by the container's name."""
        if self.pins_units:
            return {container.name: f"{self.pod_path}/{container.unit}" for container in self.pod.containers}
        own = pod_path(self.qos, self.pod.uid, is_pooled=self.is_pooled)
        paths = {container.name: f"{own}/{container.name}" for container in self.pod.containers}
        return paths | {status.name: status.cgroup for status in self.containers if status.cgroup}

    @cached_property
    def cgroup_paths(self) -> tuple[str, ...]:
        """Return the paths of the pod's cgroup and of its containers' cgroups."""
        return self.pod_path, *self.container_paths.values()

    def pairs(self) -> Iterator[tuple[Container, ContainerStatus]]:
        """Yield each container with its status. A refused pod has no statuses, so nothing is yielded."""
        return zip(self.pod.containers if self.refusal is None else (), self.containers, strict=True)

    def status(self, name: str) -> ContainerStatus:
        return next(c for c in self.containers if c.name == name)

    def with_status(self, status: ContainerStatus) -> "PodEntry":
        return replace(self, containers=tuple(status if c.name == status.name else c for c in self.containers))


def _has_begun(container: Container, status: ContainerStatus) -> bool:
    """Whether a container counts as started in kubelet (getPhase). An init container must have succeeded, and any other container must
    have run once.
    """
    if container.kind is ContainerKind.INIT:
        return status.exit is not None and status.exit.is_success
    return status.was_running or not container.is_launched


class NodeState(Struct, frozen=True):
    promises: Promises
    entries: tuple[PodEntry, ...] = ()
    """Pods in the order in which they were decided."""
    generation: int = 0
    """Number of the saved state, counted from 1. 0 means that no state has been saved yet."""
    runtime: Registry = Registry()
    """Containers of a container runtime. Their allocations are in `promises`, and their pods in `entries`."""
    units_boot_id: str = ""
    """ID of the boot in which the original settings of units were recorded. Empty means that no settings were recorded, or that the boot
    is unknown.
    """

    def holding_pods(self) -> tuple[Pod, ...]:
        """Return the pods with holdings."""
        return tuple([e.pod for e in self.entries if e.holds])

    def idle_pods(self) -> tuple[Pod, ...]:
        """Return the idle pods. Idle pods have no holdings, but still pin their units."""
        return tuple(e.pod for e in self.entries if e.is_active and not e.holds)

    def ending_uids(self) -> frozenset[str]:
        """Return the UIDs of the pods that are being ended."""
        return frozenset(e.pod.uid for e in self.entries if e.deleting_since_ms is not None)

    def pinning_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the active pods that pin units, including idle pods."""
        return tuple([e for e in self.entries if e.is_active and e.pins_units])

    def pods_of_units(self) -> tuple[Pod, ...]:
        """Return the active pods that pin systemd units, including idle pods."""
        return tuple(e.pod for e in self.pinning_entries() if e.domain == SYSTEMD)

    def unit_holders(self) -> tuple[tuple[str, frozenset[UnitKey]], ...]:
        """Return the names of the active pods that pin units, each with its units."""
        return tuple((e.pod.full_name, e.unit_keys) for e in self.pinning_entries())

    def own_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the pods that come from a manifest or a job's request."""
        return tuple([e for e in self.entries if not e.is_requested_per_container])

    def conspicuous_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the pods that may need a user's attention."""
        return tuple([e for e in self.entries if e.is_conspicuous])

    def requested_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the active pods whose containers another program requests one by one."""
        return tuple(e for e in self.entries if e.is_active and e.is_requested_per_container)

    def entry(self, uid: str) -> PodEntry | None:
        return next((e for e in self.entries if e.pod.uid == uid), None)

    def without(self, uid: str) -> "NodeState":
        """Return the state without the entry of a pod."""
        return replace(self, entries=tuple(e for e in self.entries if e.pod.uid != uid))

    def with_entry(self, entry: PodEntry) -> "NodeState":
        """Return the state with this entry instead of the pod's present entry. The search begins with the newest pods, because their
        entries change most often.
        """
        for place in range(len(self.entries) - 1, -1, -1):
            if self.entries[place].pod.uid == entry.pod.uid:
                return replace(self, entries=(*self.entries[:place], entry, *self.entries[place + 1 :]))
        return self


def apply_endings(state: NodeState, decided: NodeState) -> NodeState:
    """Apply only the endings in a decision, namely which pods begin to end, and when stopping containers are killed.

    Endings may be carried out before they are saved, because a restarted agent would decide the same.
    """
    for entry in state.entries:
        after = decided.entry(entry.pod.uid)
        if after is None or all(status.stop_by_ms is None for status in after.containers):
            continue
        is_deleted = after.deleting_since_ms is not None
        statuses = tuple(
            replace(old, stop_by_ms=new.stop_by_ms) if is_deleted or old.stop_by_ms is not None else old
            for old, new in zip(entry.containers, after.containers, strict=True)
        )
        ending = replace(entry, deleting_since_ms=after.deleting_since_ms, is_released=after.is_released)
        state = state.with_entry(replace(ending, containers=statuses))
    return state


def has_only_starts(before: NodeState, after: NodeState) -> bool:
    """Tell whether confirmed starts are the only changes of the state, and only of containers that always restart.

    Such a change need not be saved. The agent's next start finds the starts in the launcher's records again. If power is lost, the
    processes are lost as well, and the containers start again.
    """
    gone, came = find_replaced(before.entries, after.entries)
    old, new = before.entries[gone], after.entries[came]
    return (
        len(old) == len(new)
        and all(map(_differs_by_starts, old, new))
        and replace(before, entries=after.entries) == after
    )


def is_decided_again(before: NodeState, after: NodeState) -> bool:
    """Tell whether a change of the state need not be saved at once. If power is lost while only `before` is on disk, the agent's next start
    must arrive at `after` again.

    That is the case if the states differ only in these ways:

    * Pods are being ended or are gone, for a reason that still exists after the power loss. (A request of `nodeagent release` would be
      lost.) The power loss also ends the pods' processes. * Starts are confirmed, but only those of containers that may start again
      after the power loss.
    """
    gone, came = find_replaced(before.entries, after.entries)
    known = {entry.pod.uid: entry for entry in before.entries[gone]}
    for entry in after.entries[came]:
        old = known.pop(entry.pod.uid, None)
        if old is None or (entry.pod, entry.is_released) != (old.pod, old.is_released):
            return False
        if entry.deleting_since_ms is None and not _differs_by_starts(old, entry):
            return False
    held = before.promises.pods
    return (
        all(gone.deleting_since_ms is not None for gone in known.values())
        and all(held.get(uid) == pod for uid, pod in after.promises.pods)
        and (before.runtime, before.promises.unrecovered) == (after.runtime, after.promises.unrecovered)
    )


def _differs_by_starts(before: PodEntry, after: PodEntry) -> bool:
    """Whether the pod always restarts its containers, and confirmed starts are its only changes."""
    statuses = tuple(
        replace(old, started_at_ms=new.started_at_ms) if old.started_at_ms is None else old
        for old, new in zip(before.containers, after.containers, strict=False)
    )
    return before.pod.restart_policy is RestartPolicy.ALWAYS and replace(before, containers=statuses) == after


def shift_times(state: NodeState, by_ms: int) -> NodeState:
    """Shift all times in the state after the wall clock was set, so that the lengths of waits stay the same.

    The decision time of a pod stays the same, because its run IDs contain this time.
    """
    return replace(state, entries=tuple(_shift_entry(entry, by_ms) for entry in state.entries))


def latest_ms(state: NodeState) -> int:
    """Return the latest past time in the state, in milliseconds. The current time can't be earlier, whatever the wall clock shows."""
    return max((moment for entry in state.entries for moment in _list_past_times(entry)), default=0)


def _list_past_times(entry: PodEntry) -> Iterator[int]:
    exits = [ended for status in entry.containers for ended in (status.exit, status.last_exit)]
    yield from (ended.finished_at_ms for ended in exits if ended is not None)
    yield from (status.started_at_ms for status in entry.containers if status.started_at_ms is not None)
    yield from (waiting.at_ms for _, waiting in entry.waiting)
    if entry.deleting_since_ms is not None:
        yield entry.deleting_since_ms


def _shift_entry(entry: PodEntry, by_ms: int) -> PodEntry:
    def shift(moment_ms: int) -> int:
        # times must not become negative: without a battery, the machine's clock starts in 1970
        return max(0, moment_ms + by_ms)

    def shift_any(moment_ms: int | None) -> int | None:
        return None if moment_ms is None else shift(moment_ms)

    def shift_refusal(refusal: Waiting) -> Waiting:
        return replace(refusal, at_ms=shift(refusal.at_ms))

    def shift_exit(ended: Exit | None) -> Exit | None:
        return None if ended is None else replace(ended, finished_at_ms=shift(ended.finished_at_ms))

    refusal, change, idle = entry.refusal, entry.refused_change, entry.idle_refusal
    return replace(
        entry,
        refusal=None if refusal is None else shift_refusal(refusal),
        refused_change=None if change is None else replace(change, refusal=shift_refusal(change.refusal)),
        idle=entry.idle if idle is None else Idle(shift_refusal(idle)),
        containers=tuple(
            replace(
                status,
                started_at_ms=shift_any(status.started_at_ms),
                exit=shift_exit(status.exit),
                last_exit=shift_exit(status.last_exit),
                stop_by_ms=shift_any(status.stop_by_ms),
            )
            for status in entry.containers
        ),
        deleting_since_ms=shift_any(entry.deleting_since_ms),
    )


def run_id(entry: PodEntry, status: ContainerStatus) -> str:
    """Return the run ID of the container's current attempt. The launcher accepts each run ID only once.

    The ID contains the time of the decision, because a later pod with the same UID counts its attempts from 1 again. The launcher
    accepts IDs of up to 120 characters. Of these, the UID (or a hash of a longer UID) takes 36, the container's name 63, and the time
    11.
    """
    return f"{run_prefix(entry.pod.uid, status.name)}{entry.decided_at_ms:x}.{status.attempt}"


def run_prefix(pod_uid: str, container: str) -> str:
    """Return the common prefix of the IDs of all runs of a container."""
    uid = pod_uid if len(pod_uid) <= 36 else sha256_hex(pod_uid.encode())[:32]
    return f"{uid}/{container}/"
