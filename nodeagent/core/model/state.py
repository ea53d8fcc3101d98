"""State of the node as one immutable value: the promises to pods, and an entry for each known pod. The module makes no decisions.
formats/checkpoint defines the file format.
"""

import enum
from collections.abc import Collection, Iterator, Mapping
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
    """Pod phase of Kubernetes, or TERMINATING for a pod that the agent is ending."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TERMINATING = "Terminating"


class Exit(Struct, frozen=True):
    """End of a container's main process. If neither `code` nor `signal` is set, the process ended unobserved or couldn't be started."""

    finished_at_ms: int
    code: int | None = None
    signal: int | None = None
    is_oom_kill: bool = False
    start_error: str | None = None
    """Reason why the process couldn't be started. None means that it was started."""

    @property
    def is_success(self) -> bool:
        return self.code == 0

    @property
    def reason(self) -> str:
        """Return the reason for the container's end in the terms of Kubernetes, for instance OOMKilled."""
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
    """Number of starts that the agent has decided so far. The number is part of the run ID by which the launcher identifies the current
    start.
    """
    started_at_ms: int | None = None
    """Start time of the current attempt. None means that the launcher hasn't confirmed the start."""
    exit: Exit | None = None
    """End of the current attempt. None means that the attempt hasn't ended."""
    last_exit: Exit | None = None
    """End of the attempt before the current one."""
    backoff_step: int = 0
    """Number of consecutive restarts after short runs. It determines the delay of the next restart: 0, 10, 20, 40 … 300 s."""
    stop_by_ms: int | None = None
    """Time at which the agent kills the container with `cgroup.kill`, if it hasn't stopped by then. None means that the agent isn't
    stopping the container.
    """
    is_to_restart: bool = False
    """Whether the agent stops the container only to apply a resize. The container then restarts at once, whatever the pod's restart policy
    is.
    """
    oom_kills_seen: int = 0
    """Last known value of the cgroup's `oom_kill` counter. A higher value at the end of an attempt means that the OOM killer has ended the
    attempt. Restarts don't reset the counter.
    """
    had_cpus: CpuSet | None = None
    """Exclusive CPUs that the container of a finished pod had. They may belong to other pods by now. None means that the pod hasn't
    finished, or that the container had none.
    """
    unit_before: UnitSettings | None = None
    """Original settings of the systemd unit that the container pins, to be restored when the pod ends. None means that the container pins
    no unit, or that the agent hasn't read the unit's settings yet.
    """
    cgroup: str | None = None
    """Absolute path of a cgroup that a container runtime created for the container. None means that the agent's own path applies."""

    @property
    def restarts(self) -> int:
        return max(0, self.attempt - 1)

    @property
    def is_started(self) -> bool:
        """Whether the agent has decided to start the container, and hasn't observed the end of this attempt."""
        return self.attempt > 0 and self.exit is None

    @property
    def is_running(self) -> bool:
        """Whether the launcher has confirmed the start of the current attempt, and the agent hasn't observed its end."""
        return self.started_at_ms is not None and self.exit is None

    @property
    def was_running(self) -> bool:
        """Whether the container has run at least once."""
        return self.started_at_ms is not None or self.restarts > 0


class RefusedChange(Struct, frozen=True):
    """A changed manifest that the agent refused. The pod of the earlier manifest keeps running unchanged (D7)."""

    pod: Pod
    refusal: Waiting


class Idle(Struct, frozen=True):
    """State of an idle pod, which has released its allocation because none of its units is active."""

    refusal: Waiting | None = None
    """Refusal to give an allocation to the pod although one of its units is active now. The agent decides again when there is more room.
    None means that there is no refusal.
    """


MANIFEST_DIRECTORY = "manifests"
"""Name of the pod source that reads the manifest directory. Every node has this source."""
JOBS = "jobs"
"""Name of the pod source for jobs. A job ends when the process that requested it ends."""


class Origin(Struct, frozen=True):
    """Origin of a pod: the source that lists it, its key in that source, and its domain."""

    name: str
    """Key of the pod in its source. In the manifest directory, this is the file name."""
    source: str = MANIFEST_DIRECTORY
    domain: str = OWN
    """Domain named by the pod's source. For pods from manifests this is the agent's own domain (`own`), even if they pin systemd units."""


UnitKey = tuple[str, str]
"""Pair of domain and unit name. The domain is included because units of two domains can have the same name."""


def list_unit_keys(pod: Pod, origin: Origin) -> frozenset[UnitKey]:
    """Return the units that the pod pins, as pairs of domain and unit name. Without another domain in the origin, the units are
    systemd's.
    """
    domain = SYSTEMD if origin.domain == OWN else origin.domain
    return frozenset((domain, unit) for unit in pod.units)


class PodEntry(Struct, frozen=True, dict=True):
    """A pod on which the agent has decided: it is either refused or admitted. An admitted pod keeps its allocation until it has ended or
    finished.
    """

    pod: Pod
    qos: QosClass
    """QoS class that the pod had at its admission. The path of the pod's cgroup depends on it."""
    origin: Origin
    decided_at_ms: int
    refusal: Waiting | None = None
    containers: tuple[ContainerStatus, ...] = ()
    """Statuses of the containers, in the pod's order. A refused pod has none."""
    deleting_since_ms: int | None = None
    is_released: bool = False
    """Whether a user has ended the pod with `nodeagent release`. The agent then doesn't start the pod again, although its manifest
    exists.
    """
    refused_change: RefusedChange | None = None
    """Changed manifest of the pod that the agent has refused. None means that there is none."""
    idle: Idle | None = None
    """State of an idle pod. None means that the pod isn't idle."""
    outcome: Phase | None = None
    """Final phase of a finished pod, SUCCEEDED or FAILED. Such a pod has no allocation, but its exit codes stay visible. None means that
    the pod hasn't finished.
    """
    is_pooled: bool = False
    """Whether the pod's cgroup is below the shared pool's cgroup. This doesn't change while the pod exists."""

    @property
    def change_refusal(self) -> Waiting | None:
        """Return the reason for refusing the pod's changed manifest. None means that no change was refused."""
        return None if self.refused_change is None else self.refused_change.refusal

    @property
    def idle_refusal(self) -> Waiting | None:
        """Return the reason why an idle pod with an active unit gets no allocation. None means that there is no such refusal."""
        return None if self.idle is None else self.idle.refusal

    @cached_property
    def waiting(self) -> tuple[tuple[RequestKind, Waiting], ...]:
        """Return the pod's requests that the agent has refused or deferred so far."""
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
        """Whether the decision on the pod waits for the answer of a device plugin."""
        return any(waiting.is_undecided for _, waiting in self.waiting) and not self.is_requested_per_container

    @property
    def is_queued(self) -> bool:
        """Whether the pod is a job that waits in the queue. Unlike other refused pods, such a job needs no attention from users."""
        return self.refusal is not None and self.refusal.reason in OF_QUEUE

    def list_retries(self, kind: RequestKind, *, for_room: bool) -> tuple[Retry, ...]:
        """Return the events after which the agent decides again on an unmet request. The result is empty if the pod has no unmet request of
        this kind.

        Args:
            kind: kind of the request.
            for_room: whether the agent decides again on pods that were refused for lack of resources (`Config.retries_for_room`).
        """
        waiting = dict(self.waiting).get(kind)
        if waiting is None:
            return ()
        asked = RequestKind.CONTAINER if self.is_requested_per_container else kind
        return waiting.retries(asked, requests_devices=self.pod.asks_for_devices, for_room=for_room)

    @cached_property
    def is_active(self) -> bool:
        """Whether the pod is admitted and hasn't finished."""
        return self.refusal is None and self.outcome is None

    @property
    def expected_statuses(self) -> tuple[str, ...]:
        """Return the names of the containers that must have a status: all containers of an admitted pod, and none of a refused pod."""
        return () if self.refusal else tuple(container.name for container in self.pod.containers)

    @cached_property
    def has_expected_statuses(self) -> bool:
        return tuple(status.name for status in self.containers) == self.expected_statuses

    @cached_property
    def is_conspicuous(self) -> bool:
        """Whether the pod may need a user's attention, because a request is unmet or a container has exited."""
        return bool(self.waiting) or any(status.exit is not None for status in self.containers)

    @cached_property
    def holds(self) -> bool:
        """Whether the pod has an allocation. That is the case while it is active and not idle."""
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
        """Whether a container runtime creates the pod's containers, and asks the agent about each of them. Such a pod has no manifest."""
        return self.origin.domain != OWN and not self.pins_units

    @property
    def keeps_without_processes(self) -> bool:
        """Whether the pod keeps its allocation even while it has no processes, because another program (systemd, a container runtime) may
        start one at any time.
        """
        return self.pins_units or self.is_requested_per_container

    @property
    def own_cgroup(self) -> str | None:
        """Return the path of the pod's own cgroup. None means that there isn't one, because the pod pins units, whose cgroups are
        elsewhere.
        """
        return None if self.pins_units else self.pod_path

    @cached_property
    def pod_path(self) -> str:
        """Return the path of the pod's cgroup, relative to the pods' top cgroup.

        For a pod that pins units, it is only a path prefix, and no cgroup exists there. For a pod of a container runtime, the path is
        absolute if it is known.
        """
        if self.pins_units:
            return pinned_pod_path(self.domain, self.pod.uid)
        known = next((status.cgroup for status in self.containers if status.cgroup), None)
        own = pod_path(self.qos, self.pod.uid, is_pooled=self.is_pooled)
        return own if known is None else known.rpartition("/")[0]

    @cached_property
    def pins_units(self) -> bool:
        """Whether the pod's containers pin units (D30). The units' processes are then started and stopped by systemd or another program,
        and the agent only observes them.
        """
        # This property is read for each pod in each turn. So only the first container is examined: if it pins a unit, all of them do.
        containers = self.pod.containers
        return bool(containers) and bool(containers[0].unit)

    @cached_property
    def unit_keys(self) -> frozenset[UnitKey]:
        """Return the units that the pod pins, as pairs of domain and unit name."""
        return list_unit_keys(self.pod, self.origin)

    @cached_property
    def domain(self) -> str:
        """Return the name of the domain that writes the pod's cgroups and runs its processes."""
        return SYSTEMD if self.origin.domain == OWN and self.pins_units else self.origin.domain

    def container_path(self, name: str) -> str:
        """Return the path of a container's cgroup, relative to the pods' top cgroup.

        For a pinned unit, this is the agent's name for the unit's cgroup, which is elsewhere. For a container of a container runtime, the
        path is absolute.
        """
        return self.container_paths[name]

    @cached_property
    def is_placed_as_pool(self) -> bool:
        """Whether all containers have the placement of the shared pool: its CPUs and memory nodes, and no devices. They then share one
        placement file.
        """
        return self.is_pooled and not self.pod.asks_for_devices and not self.pod.claims

    @cached_property
    def paths_of_runs(self) -> Mapping[str, str]:
        """Return the cgroup path of each container, by the run ID of the container's current attempt."""
        return {run_id(self, status): self.container_path(status.name) for status in self.containers}

    @cached_property
    def container_paths(self) -> Mapping[str, str]:
        """Return the cgroup path of each container, by container name."""
        if self.pins_units:
            return {container.name: f"{self.pod_path}/{container.unit}" for container in self.pod.containers}
        own = pod_path(self.qos, self.pod.uid, is_pooled=self.is_pooled)
        paths = {container.name: f"{own}/{container.name}" for container in self.pod.containers}
        return paths | {status.name: status.cgroup for status in self.containers if status.cgroup}

    @cached_property
    def cgroup_paths(self) -> tuple[str, ...]:
        """Return the cgroup paths of the pod and of its containers."""
        return self.pod_path, *self.container_paths.values()

    def pairs(self) -> Iterator[tuple[Container, ContainerStatus]]:
        """Yield each container with its status. A refused pod yields nothing, because it has no statuses."""
        return zip(self.pod.containers if self.refusal is None else (), self.containers, strict=True)

    def status(self, name: str) -> ContainerStatus:
        return next(c for c in self.containers if c.name == name)

    def with_status(self, status: ContainerStatus) -> "PodEntry":
        return replace(self, containers=tuple(status if c.name == status.name else c for c in self.containers))


def _has_begun(container: Container, status: ContainerStatus) -> bool:
    """Return whether kubelet would count a container as started when it computes the pod's phase (getPhase). An init container must have
    succeeded, and any other container must have run once.
    """
    if container.kind is ContainerKind.INIT:
        return status.exit is not None and status.exit.is_success
    return status.was_running or not container.is_launched


class NodeState(Struct, frozen=True):
    promises: Promises
    entries: tuple[PodEntry, ...] = ()
    """Known pods, in the order in which the agent first decided on them."""
    generation: int = 0
    """Number of times that the state has been saved. 0 means that it has never been saved."""
    runtime: Registry = Registry()
    """Containers of a container runtime. `promises` contains their allocations, and `entries` contains their pods."""
    units_boot_id: str = ""
    """ID of the boot in which the agent recorded the original settings of units. Empty means that it recorded none, or that the ID is
    unknown.
    """

    def holding_pods(self) -> tuple[Pod, ...]:
        """Return the pods that have an allocation."""
        return tuple([e.pod for e in self.entries if e.holds])

    def idle_pods(self) -> tuple[Pod, ...]:
        """Return the idle pods, which have no allocation but still pin their units."""
        return tuple(e.pod for e in self.entries if e.is_active and not e.holds)

    def ending_uids(self) -> frozenset[str]:
        """Return the UIDs of the pods that the agent is ending."""
        return frozenset(e.pod.uid for e in self.entries if e.deleting_since_ms is not None)

    def pinning_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the active pods that pin units, including idle pods."""
        return tuple([e for e in self.entries if e.is_active and e.pins_units])

    def pods_of_units(self) -> tuple[Pod, ...]:
        """Return the active pods that pin systemd units, including idle pods."""
        return tuple(e.pod for e in self.pinning_entries() if e.domain == SYSTEMD)

    def unit_holders(self) -> tuple[tuple[str, frozenset[UnitKey]], ...]:
        """Return each active pod that pins units: its name, and the units as pairs of domain and unit name."""
        return tuple((e.pod.full_name, e.unit_keys) for e in self.pinning_entries())

    def own_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the pods that manifests or job requests define. Pods of a container runtime are left out."""
        return tuple([e for e in self.entries if not e.is_requested_per_container])

    def conspicuous_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the pods that may need a user's attention."""
        return tuple([e for e in self.entries if e.is_conspicuous])

    def requested_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the active pods whose containers a container runtime creates."""
        return tuple(e for e in self.entries if e.is_active and e.is_requested_per_container)

    def entry(self, uid: str) -> PodEntry | None:
        return next((e for e in self.entries if e.pod.uid == uid), None)

    def without(self, uid: str) -> "NodeState":
        """Return a copy of the state without the pod's entry."""
        return replace(self, entries=tuple(e for e in self.entries if e.pod.uid != uid))

    def with_entry(self, entry: PodEntry) -> "NodeState":
        """Return a copy of the state in which this entry replaces the earlier entry of the same pod. The search begins with the newest
        pods, whose entries change most often.
        """
        for place in range(len(self.entries) - 1, -1, -1):
            if self.entries[place].pod.uid == entry.pod.uid:
                return replace(self, entries=(*self.entries[:place], entry, *self.entries[place + 1 :]))
        return self

    def with_entries(self, entries: Collection[PodEntry]) -> "NodeState":
        """Return the state with these entries instead of the present entries of their pods."""
        if len(entries) <= 1:
            return self.with_entry(*entries) if entries else self
        changed = {entry.pod.uid: entry for entry in entries}
        return replace(self, entries=tuple([changed.get(entry.pod.uid, entry) for entry in self.entries]))


def apply_endings(state: NodeState, decided: NodeState) -> NodeState:
    """Return `state` with only those changes of `decided` that end pods: the pods that begin to end, and the times at which stopping
    containers are killed.

    The agent may end pods before it has saved the decision, because after a restart it would decide the same.
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
    """Return whether the two states differ only in confirmed starts of containers that are always restarted.

    The agent needn't save such a change. After a restart, it finds the starts in the launcher's records. After a power failure, the
    processes are gone, and it starts the containers again.
    """
    gone, came = find_replaced(before.entries, after.entries)
    old, new = before.entries[gone], after.entries[came]
    return (
        len(old) == len(new)
        and all(map(_differs_by_starts, old, new))
        and replace(before, entries=after.entries) == after
    )


def is_decided_again(before: NodeState, after: NodeState) -> bool:
    """Return whether the agent may postpone saving a change of the state. It may if it would decide `after` again when it starts with
    `before`, which is then still on disk after a power failure.

    This is true if the two states differ only in these ways:

    * Pods are ending or have ended, for a reason that still exists after a power failure. (The request of `nodeagent release` would be
      lost, so it doesn't count.) The power failure ends the pods' processes as well.
    * Starts are confirmed, of containers that may start again after a power failure.
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
    """Return whether confirmed starts are the only difference between two versions of a pod's entry, and the pod always restarts its
    containers.
    """
    statuses = tuple(
        replace(old, started_at_ms=new.started_at_ms) if old.started_at_ms is None else old
        for old, new in zip(before.containers, after.containers, strict=False)
    )
    return before.pod.restart_policy is RestartPolicy.ALWAYS and replace(before, containers=statuses) == after


def shift_times(state: NodeState, by_ms: int) -> NodeState:
    """Shift all times in the state after somebody has set the wall clock, so that remaining waiting times stay the same.

    The time of the decision on a pod isn't shifted, because run IDs contain it.
    """
    return replace(state, entries=tuple(_shift_entry(entry, by_ms) for entry in state.entries))


def latest_ms(state: NodeState) -> int:
    """Return the latest past time in the state, in milliseconds. If the wall clock shows an earlier time, the clock is wrong."""
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
    """Return the run ID of the container's current attempt. The launcher starts each run ID only once.

    The ID contains the time of the decision, because a later pod with the same UID counts its attempts from 1, too. The launcher accepts at
    most 120 characters: 36 for the UID (or its hash), 63 for the container's name, 11 for the time, and the rest for the attempt.
    """
    return f"{run_prefix(entry.pod.uid, status.name)}{entry.decided_at_ms:x}.{status.attempt}"


def run_prefix(pod_uid: str, container: str) -> str:
    """Return the beginning that all run IDs of a container have in common."""
    uid = pod_uid if len(pod_uid) <= 36 else sha256_hex(pod_uid.encode())[:32]
    return f"{uid}/{container}/"
