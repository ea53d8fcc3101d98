"""The node's state: every promise made and every pod known, one immutable value. Knows no file format and makes no decision."""

import enum
from collections.abc import Iterator
from hashlib import sha256

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.cgroup_layout import pinned_pod_path, pod_path
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import OWN, SYSTEMD, Container, ContainerKind, Pod, QosClass
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.runtime_containers import Registry
from nodeagent.core.model.waiting import RequestKind, Retry, Waiting


class Phase(enum.Enum):
    """Kubernetes' pod phases, plus one for a pod that is being ended."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TERMINATING = "Terminating"


class Exit(Struct, frozen=True):
    """How a container's main process ended. Neither code nor signal: nobody observed it."""

    finished_at_ms: int
    code: int | None = None
    signal: int | None = None
    is_oom_kill: bool = False
    start_error: str | None = None
    """Why the process could not be started at all."""

    @property
    def is_success(self) -> bool:
        return self.code == 0

    @property
    def reason(self) -> str:
        """Kubernetes' word for it."""
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
    """How often a start was decided on. The launcher knows the attempt's run under `run_id`."""
    started_at_ms: int | None = None
    """Of the current attempt, once the launcher has confirmed it."""
    exit: Exit | None = None
    """Of the current attempt."""
    last_exit: Exit | None = None
    """Of the previous attempt."""
    backoff_step: int = 0
    """How many restarts in a row came soon after a start: the next one waits 0, 10, 20, 40 … 300 s."""
    stop_by_ms: int | None = None
    """The container is being stopped: SIGTERM now, `cgroup.kill` at this time. None: it is not."""
    is_to_restart: bool = False
    """It is being stopped for its new amounts, and starts again at once, whatever its pod's restart policy."""
    oom_kills_seen: int = 0
    """The cgroup's oom_kill counter when the attempt was decided on, and later when it ended: it outlives container restarts."""
    had_cpus: CpuSet | None = None
    """Its exclusive CPUs until the pod finished, which may now belong to others. None: the pod has not finished, or had none."""
    unit_before: UnitSettings | None = None
    """What its systemd unit goes back to in the end. None: it has no unit, or that has not been seen yet, and is not touched before."""
    cgroup: str | None = None
    """Where a container runtime has it, as an absolute path. None: below the pods' cgroup."""

    @property
    def restarts(self) -> int:
        return max(0, self.attempt - 1)

    @property
    def is_started(self) -> bool:
        """An attempt was decided on and has not been observed to end."""
        return self.attempt > 0 and self.exit is None

    @property
    def is_running(self) -> bool:
        """The attempt was observed to run, and not to end."""
        return self.started_at_ms is not None and self.exit is None

    @property
    def was_running(self) -> bool:
        """At least one attempt was observed to run."""
        return self.started_at_ms is not None or self.restarts > 0


class RefusedChange(Struct, frozen=True):
    """A pod's changed manifest that was refused: the pod keeps running as it was (D7)."""

    pod: Pod
    refusal: Waiting


class Idle(Struct, frozen=True):
    """What a pod has given back that does so while none of its systemd units is active: all that it was promised."""

    refusal: Waiting | None = None
    """A unit has become active, and the pod could not have it again. It is tried anew in every turn, until it can or no unit is active."""


MANIFEST_DIRECTORY = "manifests"
"""The source of pods that every node has."""
JOBS = "jobs"
"""The source of pods that last as long as the process that asked for them."""


class Origin(Struct, frozen=True):
    """Where a pod comes from."""

    name: str
    """The source's key for it: in the manifest directory the file name."""
    source: str = MANIFEST_DIRECTORY
    domain: str = OWN
    """Of its cgroups and processes: the agent's own, or another program's. A pod of the agent's own may still pin systemd's units."""


class PodEntry(Struct, frozen=True):
    """A pod that was decided on: admitted (holding its promises until it is gone or finished) or refused."""

    pod: Pod
    qos: QosClass
    """As it was when decided on: the cgroup path follows from it."""
    origin: Origin
    decided_at_ms: int
    refusal: Waiting | None = None
    containers: tuple[ContainerStatus, ...] = ()
    """One per container of the pod, in its order; empty if refused."""
    deleting_since_ms: int | None = None
    is_released: bool = False
    """It was ended on request (`nodeagent release`): its manifest alone doesn't bring it back."""
    refused_change: RefusedChange | None = None
    """None: its manifest is unchanged, or the change was not tried."""
    idle: Idle | None = None
    """None: it holds what it was promised, as long as it is active."""
    outcome: Phase | None = None
    """SUCCEEDED or FAILED once no container will run again: the promises are released, the exit codes stay visible."""

    @property
    def change_refusal(self) -> Waiting | None:
        """Why its changed manifest is not followed. None: it matches its manifest, as far as changes were tried."""
        return None if self.refused_change is None else self.refused_change.refusal

    @property
    def idle_refusal(self) -> Waiting | None:
        """Why it does not hold again what it has given back, although a unit of it is active."""
        return None if self.idle is None else self.idle.refusal

    @property
    def waiting(self) -> tuple[tuple[RequestKind, Waiting], ...]:
        """Everything that the pod asks for and doesn't have."""
        found = (
            (RequestKind.POD, self.refusal),
            (RequestKind.CHANGE, self.change_refusal),
            (RequestKind.RESUME, self.idle_refusal),
        )
        return tuple((asked, waiting) for asked, waiting in found if waiting is not None)

    def list_retries(self, kind: RequestKind, *, for_room: bool) -> tuple[Retry, ...]:
        """Return the events that let an unmet request be tried again. There are none if the request is met.

        Args:
            kind: the request.
            for_room: whether the node tries pods again that were refused for room (`Config.retries_for_room`).
        """
        waiting = dict(self.waiting).get(kind)
        if waiting is None:
            return ()
        asked = RequestKind.CONTAINER if self.is_requested_per_container else kind
        return waiting.retries(asked, requests_devices=self.pod.asks_for_devices, for_room=for_room)

    @property
    def is_active(self) -> bool:
        """It was admitted, and is not over."""
        return self.refusal is None and self.outcome is None

    @property
    def holds(self) -> bool:
        """Whether it holds what it was promised."""
        return self.is_active and self.idle is None

    @property
    def phase(self) -> Phase:
        if self.refusal is not None:
            return Phase.FAILED
        if self.deleting_since_ms is not None:
            return Phase.TERMINATING
        if self.outcome is not None:
            return self.outcome
        return Phase.RUNNING if all(_has_begun(c, s) for c, s in self.pairs()) else Phase.PENDING

    @property
    def is_requested_per_container(self) -> bool:
        """Whether the program that runs the pod requests one container after the other. No manifest counts for such a pod."""
        return self.origin.domain != OWN and not self.pins_units

    @property
    def pod_path(self) -> str:
        """Its cgroup, relative to the pods' cgroup.

        Of a pod whose containers are systemd's units, what stands for it; of a container runtime's, an absolute path, once one is known.
        """
        if self.pins_units:
            return pinned_pod_path(self.domain, self.pod.uid)
        known = next((status.cgroup for status in self.containers if status.cgroup), None)
        return pod_path(self.qos, self.pod.uid) if known is None else known.rpartition("/")[0]

    @property
    def pins_units(self) -> bool:
        """Whether the containers pin units (D30). Another program, such as systemd, runs their processes, and the agent only watches."""
        containers = self.pod.containers  # this runs for each pod in each turn; all containers pin units, or none
        return bool(containers) and bool(containers[0].unit)

    @property
    def domain(self) -> str:
        """The name of the domain that it belongs to: whose cgroups and processes its containers are."""
        return SYSTEMD if self.origin.domain == OWN and self.pins_units else self.origin.domain

    def container_path(self, name: str) -> str:
        """Return a container's cgroup, relative to the pods' cgroup; for a systemd unit, what stands for it; an absolute path of one that a
        container runtime has.
        """
        if self.pins_units:
            return f"{self.pod_path}/{self.pod.container(name).unit}"
        known = next((status.cgroup for status in self.containers if status.name == name), None)
        return known or f"{pod_path(self.qos, self.pod.uid)}/{name}"

    def pairs(self) -> Iterator[tuple[Container, ContainerStatus]]:
        """Return each container with its status; those of a refused pod have none."""
        return zip(self.pod.containers if self.refusal is None else (), self.containers, strict=True)

    def status(self, name: str) -> ContainerStatus:
        return next(c for c in self.containers if c.name == name)

    def with_status(self, status: ContainerStatus) -> "PodEntry":
        return replace(self, containers=tuple(status if c.name == status.name else c for c in self.containers))


def _has_begun(container: Container, status: ContainerStatus) -> bool:
    """Kubelet's test (getPhase): init containers have succeeded, all others have run at least once."""
    if container.kind is ContainerKind.INIT:
        return status.exit is not None and status.exit.is_success
    return status.was_running or not container.is_launched


class NodeState(Struct, frozen=True):
    promises: Promises
    entries: tuple[PodEntry, ...] = ()
    """In decision order."""
    generation: int = 0
    """Counts the saved states."""
    runtime: Registry = Registry()
    """Containers of a container runtime; what is promised to them is among the promises, and their pods among the entries."""

    def holding_pods(self) -> tuple[Pod, ...]:
        """Return the pods that hold what they were promised."""
        return tuple(e.pod for e in self.entries if e.holds)

    def idle_pods(self) -> tuple[Pod, ...]:
        """Return the pods that hold nothing now, and stand for their units all the same."""
        return tuple(e.pod for e in self.entries if e.is_active and not e.holds)

    def ending(self) -> frozenset[str]:
        """Return the UIDs of the pods that are being ended."""
        return frozenset(e.pod.uid for e in self.entries if e.deleting_since_ms is not None)

    def pods_of_units(self) -> tuple[Pod, ...]:
        """Return the pods that stand for systemd's units, whether they hold anything or not."""
        return tuple(e.pod for e in self.entries if e.is_active and e.pins_units)

    def own_entries(self) -> tuple[PodEntry, ...]:
        """Return the pods that follow a manifest or a job's request."""
        return tuple(e for e in self.entries if not e.is_requested_per_container)

    def requested_entries(self) -> tuple[PodEntry, ...]:
        """Return the active pods of which another program requests one container after the other."""
        return tuple(e for e in self.entries if e.is_active and e.is_requested_per_container)

    def entry(self, uid: str) -> PodEntry | None:
        return next((e for e in self.entries if e.pod.uid == uid), None)

    def with_entry(self, entry: PodEntry) -> "NodeState":
        """Replace the entry of the same pod, in its place."""
        return replace(self, entries=tuple(entry if e.pod.uid == entry.pod.uid else e for e in self.entries))


def with_endings(state: NodeState, decided: NodeState) -> NodeState:
    """Take over of a decision only which pods are to end, and when containers that are being stopped already are killed.

    A restart would decide it again, so it need not be saved to be done.
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


def moved(state: NodeState, by_ms: int) -> NodeState:
    """Return the state with its times shifted by the amount by which the wall clock was set: waits become neither shorter nor longer.

    The time of a pod's decision stays: runs are named after it.
    """
    return replace(state, entries=tuple(_moved(entry, by_ms) for entry in state.entries))


def latest_ms(state: NodeState) -> int:
    """Return the latest time that the state knows to have passed: it is not earlier now, whatever the wall clock says."""
    return max((moment for entry in state.entries for moment in _passed(entry)), default=0)


def _passed(entry: PodEntry) -> Iterator[int]:
    exits = [ended for status in entry.containers for ended in (status.exit, status.last_exit)]
    yield from (ended.finished_at_ms for ended in exits if ended is not None)
    yield from (status.started_at_ms for status in entry.containers if status.started_at_ms is not None)
    yield from (waiting.at_ms for _, waiting in entry.waiting)
    if entry.deleting_since_ms is not None:
        yield entry.deleting_since_ms


def _moved(entry: PodEntry, by_ms: int) -> PodEntry:
    refusal, change, idle = entry.refusal, entry.refused_change, entry.idle_refusal
    return replace(
        entry,
        refusal=None if refusal is None else _moved_refusal(refusal, by_ms),
        refused_change=None if change is None else replace(change, refusal=_moved_refusal(change.refusal, by_ms)),
        idle=entry.idle if idle is None else Idle(_moved_refusal(idle, by_ms)),
        containers=tuple(_moved_status(status, by_ms) for status in entry.containers),
        deleting_since_ms=_later_if_any(entry.deleting_since_ms, by_ms),
    )


def _moved_refusal(refusal: Waiting, by_ms: int) -> Waiting:
    return replace(refusal, at_ms=_later(refusal.at_ms, by_ms))


def _moved_status(status: ContainerStatus, by_ms: int) -> ContainerStatus:
    return replace(
        status,
        started_at_ms=_later_if_any(status.started_at_ms, by_ms),
        exit=_moved_exit(status.exit, by_ms),
        last_exit=_moved_exit(status.last_exit, by_ms),
        stop_by_ms=_later_if_any(status.stop_by_ms, by_ms),
    )


def _moved_exit(ended: Exit | None, by_ms: int) -> Exit | None:
    return None if ended is None else replace(ended, finished_at_ms=_later(ended.finished_at_ms, by_ms))


def _later_if_any(moment_ms: int | None, by_ms: int) -> int | None:
    return None if moment_ms is None else _later(moment_ms, by_ms)


def _later(moment_ms: int, by_ms: int) -> int:
    """No time before 1970: a clock that has lost its battery starts there."""
    return max(0, moment_ms + by_ms)


def run_id(entry: PodEntry, status: ContainerStatus) -> str:
    """Name the container's current attempt for the launcher, which starts each id only once.

    A pod may come back under the same UID, and its attempts then count from 1 again: the time of the decision tells its lives apart. The
    launcher accepts ids of up to 120 characters: 36 of a UID (of longer ones a hash), 63 of a container's name, 11 of the time.
    """
    return f"{run_prefix(entry.pod.uid, status.name)}{entry.decided_at_ms:x}.{status.attempt}"


def run_prefix(pod_uid: str, container: str) -> str:
    """Return the common prefix of the ids of all runs of a container."""
    uid = pod_uid if len(pod_uid) <= 36 else sha256(pod_uid.encode()).hexdigest()[:32]
    return f"{uid}/{container}/"
