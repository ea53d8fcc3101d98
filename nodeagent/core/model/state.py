"""The node's state as one immutable value: all promises and all known pods. This module neither defines a file format nor makes
decisions.
"""

import enum
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.cgroup_layout import pinned_pod_path, pod_path
from nodeagent.core.model.digest import sha256_hex
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import OWN, SYSTEMD, Container, ContainerKind, Pod, QosClass, RestartPolicy
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import OF_QUEUE
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.core.model.waiting import RequestKind, Retry, Waiting


class Phase(enum.Enum):
    """Kubernetes' pod phases, and a further phase for a pod that is being ended."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TERMINATING = "Terminating"


class Exit(Struct, frozen=True):
    """End of a container's main process. If both code and signal are missing, the end was not observed."""

    finished_at_ms: int
    code: int | None = None
    signal: int | None = None
    is_oom_kill: bool = False
    start_error: str | None = None
    """Reason why the process could not be started."""

    @property
    def is_success(self) -> bool:
        return self.code == 0

    @property
    def reason(self) -> str:
        """Kubernetes' `reason` for such an end, for instance OOMKilled."""
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
    """Number of starts so far, counted when a start is decided on. The launcher identifies the current start by its `run_id`."""
    started_at_ms: int | None = None
    """Start of the current attempt, once the launcher has confirmed it."""
    exit: Exit | None = None
    """End of the current attempt. None means that the attempt has not ended."""
    last_exit: Exit | None = None
    """End of the previous attempt."""
    backoff_step: int = 0
    """Number of consecutive restarts after short runs. This number determines the wait before the next restart: 0, 10, 20, 40 … 300 s."""
    stop_by_ms: int | None = None
    """Time at which a container that is being stopped is killed (`cgroup.kill`). None means that it isn't being stopped."""
    is_to_restart: bool = False
    """Whether the container is being stopped to apply new amounts. The container starts again at once, whatever the pod's restart
    policy.
    """
    oom_kills_seen: int = 0
    """Value of the cgroup's oom_kill counter at the last decision or end of an attempt. Restarts don't reset the counter."""
    had_cpus: CpuSet | None = None
    """Exclusive CPUs that the container had until the pod finished. By now, other pods may have them. None means that the pod has not
    finished, or had no exclusive CPUs.
    """
    unit_before: UnitSettings | None = None
    """Settings to restore for the container's unit. None means that the container pins no unit, or that the unit wasn't observed yet and
    has not been changed.
    """
    cgroup: str | None = None
    """Absolute path of the container's cgroup, if a container runtime created it. None means a cgroup below the pods' cgroup."""

    @property
    def restarts(self) -> int:
        return max(0, self.attempt - 1)

    @property
    def is_started(self) -> bool:
        """Whether the decision to start was made, and the end of this attempt has not been observed."""
        return self.attempt > 0 and self.exit is None

    @property
    def is_running(self) -> bool:
        """Whether the current attempt was observed to run, and its end has not been observed."""
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
    """State of a pod that has released all its holdings because none of its units is active."""

    refusal: Waiting | None = None
    """Refusal to resume the pod although a unit is active. A new decision follows once there is more room. None means that the pod wasn't
    refused.
    """


MANIFEST_DIRECTORY = "manifests"
"""Name of the source for the manifest directory, which every node has."""
JOBS = "jobs"
"""Name of the source for jobs. A job lasts as long as the process that requested the job."""


class Origin(Struct, frozen=True):
    """Origin of a pod: the source, the source's key for the pod, and the domain."""

    name: str
    """The source's key for the pod. In the manifest directory, the key is the file name."""
    source: str = MANIFEST_DIRECTORY
    domain: str = OWN
    """Domain of the pod's cgroups and processes. A pod of the agent's own domain may still pin systemd units."""


UnitKey = tuple[str, str]
"""Domain and name of a unit. Units of different domains may have the same name."""


def list_unit_keys(pod: Pod, origin: Origin) -> frozenset[UnitKey]:
    """Return the units that a pod of this origin pins."""
    domain = SYSTEMD if origin.domain == OWN else origin.domain
    return frozenset((domain, unit) for unit in pod.units)


class PodEntry(Struct, frozen=True, dict=True):
    """A pod on which a decision was made: it was either refused or admitted. An admitted pod keeps its promises until it is gone or
    finished.
    """

    pod: Pod
    qos: QosClass
    """QoS class at the time of the decision. The cgroup path depends on it."""
    origin: Origin
    decided_at_ms: int
    refusal: Waiting | None = None
    containers: tuple[ContainerStatus, ...] = ()
    """Statuses of all containers in the pod's order. Empty for a refused pod."""
    deleting_since_ms: int | None = None
    is_released: bool = False
    """Whether the pod was ended on request (`nodeagent release`). If so, its manifest doesn't start it again."""
    refused_change: RefusedChange | None = None
    """Refused change of the pod's manifest. None means that the manifest is unchanged, or that the change wasn't tried."""
    idle: Idle | None = None
    """State of an idle pod. None means that the pod isn't idle, so an active pod has its holdings."""
    outcome: Phase | None = None
    """Final phase, SUCCEEDED or FAILED, once none of the containers will run again. None means that the pod has not finished. The holdings
    are then released. Exit codes stay visible.
    """
    is_pooled: bool = False
    """Whether the pod's cgroup is below the shared pool's cgroup. The cgroup stays there as long as the pod exists."""

    @property
    def change_refusal(self) -> Waiting | None:
        """Refusal of the pod's changed manifest. None means that the manifest is unchanged, or that the change wasn't tried."""
        return None if self.refused_change is None else self.refused_change.refusal

    @property
    def idle_refusal(self) -> Waiting | None:
        """Refusal to resume the pod although one of its units is active."""
        return None if self.idle is None else self.idle.refusal

    @cached_property
    def waiting(self) -> tuple[tuple[RequestKind, Waiting], ...]:
        """All unmet requests of the pod."""
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
        """Whether the pod waits for the answer of a device plugin. The decision on the pod follows after the answer."""
        return any(waiting.is_undecided for _, waiting in self.waiting) and not self.is_requested_per_container

    @property
    def is_queued(self) -> bool:
        """Whether the pod is a job that waits in the queue. Such a pod doesn't need anybody's attention."""
        return self.refusal is not None and self.refusal.reason in OF_QUEUE

    def list_retries(self, kind: RequestKind, *, for_room: bool) -> tuple[Retry, ...]:
        """Return the events after which an unmet request is tried again. The result is empty if the request is met.

        Args:
            kind: the request.
            for_room: whether the node tries pods again that were refused for lack of resources (`Config.retries_for_room`).
        """
        waiting = dict(self.waiting).get(kind)
        if waiting is None:
            return ()
        asked = RequestKind.CONTAINER if self.is_requested_per_container else kind
        return waiting.retries(asked, requests_devices=self.pod.asks_for_devices, for_room=for_room)

    @cached_property
    def is_active(self) -> bool:
        """Whether the pod was admitted and has not finished."""
        return self.refusal is None and self.outcome is None

    @property
    def expected_statuses(self) -> tuple[str, ...]:
        """Names of the containers that must have a status: all containers of an admitted pod, none of a refused pod."""
        return () if self.refusal else tuple(container.name for container in self.pod.containers)

    @cached_property
    def has_expected_statuses(self) -> bool:
        return tuple(status.name for status in self.containers) == self.expected_statuses

    @cached_property
    def is_conspicuous(self) -> bool:
        """Whether the pod may need a person's attention: a request is unmet, or a container has ended."""
        return bool(self.waiting) or any(status.exit is not None for status in self.containers)

    @cached_property
    def holds(self) -> bool:
        """Whether the pod has its holdings: it is active and not idle."""
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
        """Whether another program requests the pod's containers one by one. Such a pod doesn't follow a manifest."""
        return self.origin.domain != OWN and not self.pins_units

    @property
    def keeps_without_processes(self) -> bool:
        """Whether the pod keeps its allocation while it has no processes. Another program may start a process at any time."""
        return self.pins_units or self.is_requested_per_container

    @property
    def own_cgroup(self) -> str | None:
        """Path of the pod's own cgroup. None means that the pod pins units, whose cgroups are elsewhere."""
        return None if self.pins_units else self.pod_path

    @cached_property
    def pod_path(self) -> str:
        """Path of the pod's cgroup, relative to the pods' cgroup.

        For a pod with pinned units, no cgroup has the path. For a container runtime's pod, the path is absolute, if it is known.
        """
        if self.pins_units:
            return pinned_pod_path(self.domain, self.pod.uid)
        known = next((status.cgroup for status in self.containers if status.cgroup), None)
        own = pod_path(self.qos, self.pod.uid, is_pooled=self.is_pooled)
        return own if known is None else known.rpartition("/")[0]

    @cached_property
    def pins_units(self) -> bool:
        """Whether the containers pin units (D30). Another program, such as systemd, runs the units' processes, and the agent only watches
        them.
        """
        containers = (
            self.pod.containers
        )  # this property is read for each pod in each turn; all containers of a pod pin units, or none does
        return bool(containers) and bool(containers[0].unit)

    @cached_property
    def unit_keys(self) -> frozenset[UnitKey]:
        """Units that the pod pins."""
        return list_unit_keys(self.pod, self.origin)

    @cached_property
    def domain(self) -> str:
        """Name of the domain that owns the pod's cgroups and processes."""
        return SYSTEMD if self.origin.domain == OWN and self.pins_units else self.origin.domain

    def container_path(self, name: str) -> str:
        """Return the path of a container's cgroup, relative to the pods' cgroup.

        For a pinned unit, the path leads to the unit's cgroup. For a container runtime's container, the path is absolute.
        """
        return self.container_paths[name]

    @cached_property
    def is_placed_as_pool(self) -> bool:
        """Whether the containers have only the CPUs and memory nodes of the shared pool, so that they can read the pool's
        placement file.
        """
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
        """Paths of the pod's cgroup and of its containers' cgroups."""
        return self.pod_path, *self.container_paths.values()

    def pairs(self) -> Iterator[tuple[Container, ContainerStatus]]:
        """Return each container with its status. For a refused pod the result is empty."""
        return zip(self.pod.containers if self.refusal is None else (), self.containers, strict=True)

    def status(self, name: str) -> ContainerStatus:
        return next(c for c in self.containers if c.name == name)

    def with_status(self, status: ContainerStatus) -> "PodEntry":
        return replace(self, containers=tuple(status if c.name == status.name else c for c in self.containers))


def _has_begun(container: Container, status: ContainerStatus) -> bool:
    """Whether a container counts as started in kubelet (getPhase). An init container must have succeeded. Any other container must have
    run once.
    """
    if container.kind is ContainerKind.INIT:
        return status.exit is not None and status.exit.is_success
    return status.was_running or not container.is_launched


class NodeState(Struct, frozen=True):
    promises: Promises
    entries: tuple[PodEntry, ...] = ()
    """Pods in the order of the decisions on them."""
    generation: int = 0
    """Number of the saved state, counted from 1. 0 means that no state was saved yet."""
    runtime: Registry = Registry()
    """Containers of a container runtime. Their allocations are in `promises`, and their pods in `entries`."""
    units_boot_id: str = ""
    """ID of the boot in which the original settings of units were recorded. Empty means that none were recorded, or that the boot is
    unknown.
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
        """Return the entries of the pods that follow a manifest or a job's request."""
        return tuple([e for e in self.entries if not e.is_requested_per_container])

    def conspicuous_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the pods that may need a person's attention."""
        return tuple([e for e in self.entries if e.is_conspicuous])

    def requested_entries(self) -> tuple[PodEntry, ...]:
        """Return the entries of the active pods whose containers another program requests one by one."""
        return tuple(e for e in self.entries if e.is_active and e.is_requested_per_container)

    def by_run(self) -> dict[str, str]:
        """Return the path of each container's cgroup, by the run ID of its current attempt."""
        return dict(chain.from_iterable([entry.paths_of_runs.items() for entry in self.entries]))

    def entry(self, uid: str) -> PodEntry | None:
        return next((e for e in self.entries if e.pod.uid == uid), None)

    def without(self, uid: str) -> "NodeState":
        """Return the state without the entry of a pod."""
        return replace(self, entries=tuple(e for e in self.entries if e.pod.uid != uid))

    def with_entry(self, entry: PodEntry) -> "NodeState":
        """Return the state with this entry in place of the pod's present entry. The search begins with the newest pods, because their
        entries change most.
        """
        for place in range(len(self.entries) - 1, -1, -1):
            if self.entries[place].pod.uid == entry.pod.uid:
                return replace(self, entries=(*self.entries[:place], entry, *self.entries[place + 1 :]))
        return self


def apply_endings(state: NodeState, decided: NodeState) -> NodeState:
    """Apply only the endings of a decision: pods that begin to end, and kill times of containers that are being stopped.

    These endings may be carried out without being saved, because a restarted agent would make the same decisions again.
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


def is_decided_again(before: NodeState, after: NodeState) -> bool:
    """Tell whether the agent's next start would come from the state `before` to the state `after` again, if power is lost while only
    `before` is on disk.

    That is the case if the states differ only in these ways:

    * Pods are being ended or are gone, for a reason that still exists after the loss. (A request of `nodeagent release` would be lost.) The
      loss of power also ends the pods' processes.
    * Starts are confirmed, but only of containers that may start again after the loss.
    """
    known = {entry.pod.uid: entry for entry in before.entries}
    for entry in after.entries:
        old = known.pop(entry.pod.uid, None)
        if entry is old:
            continue
        if old is None or (entry.pod, entry.is_released) != (old.pod, old.is_released):
            return False
        if entry.deleting_since_ms is None and not _has_only_starts(old, entry):
            return False
    held = before.promises.pods
    return (
        all(gone.deleting_since_ms is not None for gone in known.values())
        and all(held.get(uid) == pod for uid, pod in after.promises.pods)
        and (before.runtime, before.promises.unrecovered) == (after.runtime, after.promises.unrecovered)
    )


def _has_only_starts(before: PodEntry, after: PodEntry) -> bool:
    """Whether the pod always restarts its containers, and the only changes are confirmed starts."""
    statuses = tuple(
        replace(old, started_at_ms=new.started_at_ms) if old.started_at_ms is None else old
        for old, new in zip(before.containers, after.containers, strict=False)
    )
    return before.pod.restart_policy is RestartPolicy.ALWAYS and replace(before, containers=statuses) == after


def shift_times(state: NodeState, by_ms: int) -> NodeState:
    """Shift all times of the state after the wall clock was set, so that waits become neither shorter nor longer.

    The decision time of a pod stays the same, because its run IDs contain this time.
    """
    return replace(state, entries=tuple(_shift_entry(entry, by_ms) for entry in state.entries))


def latest_ms(state: NodeState) -> int:
    """Return the latest past time in the state. The current time can't be earlier, whatever the wall clock shows."""
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
        return max(0, moment_ms + by_ms)  # without a battery, the machine's clock starts in 1970

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
    """Return the ID of the container's current attempt. The launcher starts each ID only once.

    A later pod may have the same UID, and its attempts are counted from 1 again. The ID therefore contains the time of the decision. The
    launcher accepts IDs of up to 120 characters. A UID (or the hash of a longer UID) takes 36 of them, a container's name 63, and the time
    11.
    """
    return f"{run_prefix(entry.pod.uid, status.name)}{entry.decided_at_ms:x}.{status.attempt}"


def run_prefix(pod_uid: str, container: str) -> str:
    """Return the common prefix of the IDs of all runs of a container."""
    uid = pod_uid if len(pod_uid) <= 36 else sha256_hex(pod_uid.encode())[:32]
    return f"{uid}/{container}/"
