"""Values of one turn: its observations and its result."""

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from nodeagent.core.admission.managers import Managers, Report
from nodeagent.core.admission.node_capacity import Allocatable
from nodeagent.core.admission.room import Room
from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.metrics.deltas import MetricDelta
from nodeagent.core.model.cgroup import ObservedCgroups
from nodeagent.core.model.config import Config
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import NodeState, Origin, PodEntry
from nodeagent.core.model.waiting import RequestKind
from nodeagent.core.turn.expected_starts import QueuedJob
from nodeagent.core.turn.lifecycle import Runs
from nodeagent.core.turn.pod_sources import PodSource


class RequestKey(NamedTuple):
    """Identity of an unmet request: its pod, its kind, and the container if the request is about a single container."""

    pod_uid: str
    kind: RequestKind
    container: str = ""
    """Name of the container, if the request comes from a container runtime. Otherwise empty."""


SeenRoom = Mapping[RequestKey, Room]
"""Room at the last decision on each unmet request."""


class World(Struct, frozen=True):
    """Snapshot of everything observed for one turn."""

    config: Config
    managers: Managers
    allocatable: Allocatable
    sources: tuple[PodSource, ...]
    """Sources of pods, in order of precedence. While a source is unreadable, its pods stay unchanged."""
    runs: Runs | None
    """Runs that the launcher knows. None means that the launcher doesn't answer."""
    observed: ObservedCgroups
    now_ms: int
    retried: frozenset[str] = frozenset()
    """UIDs of pods for which a user wants a new decision, either on the pod itself or on its changed manifest."""
    released: frozenset[str] = frozenset()
    """UIDs of pods that a user wants to end, regardless of their manifests."""
    inactive_units: frozenset[str] = frozenset()
    """Paths of pinned units that are neither active nor being started."""
    has_reported_all: bool = True
    """Whether every container runtime has reported its pods."""
    asked_to_end: frozenset[str] = frozenset()
    """IDs of the runs to which the agent has tried to send SIGTERM since its start."""
    seen_room: SeenRoom = {}
    """Room at the last saved decisions."""
    quiet: frozenset[str] = frozenset()
    """UIDs of pods for which the turn has nothing to do (quiet.py). Without this set, the turn has the same result, but takes more time."""
    lead_ms: int = 0
    """Wall-clock time minus the time since boot, in milliseconds."""
    boot_id: str = ""
    """ID of this boot, given by the kernel. Empty means that the ID is unknown."""
    kernel: Kernel | None = None
    """Properties of the kernel's cgroups. None means that no domain needs them."""
    last_awake: list[tuple[Sequence[PodEntry], frozenset[str], Sequence[PodEntry]]] = field(default_factory=list)
    """Last result of `awake`, with its inputs. It is cached because most stages need the pods of the same state."""

    last_waiting: list[tuple[NodeState, PodSource, str, list[QueuedJob]]] = field(default_factory=list)
    """Last list of waiting jobs, with the state, the source and the reservation for which it was made."""

    def awake(self, entries: Sequence[PodEntry]) -> Sequence[PodEntry]:
        """Return the pods that aren't quiet."""
        if not self.quiet:
            return entries
        if self.last_awake and self.last_awake[0][0] is entries and self.last_awake[0][1] is self.quiet:
            return self.last_awake[0][2]
        found = [entry for entry in entries if entry.pod.uid not in self.quiet]
        self.last_awake[:] = [(entries, self.quiet, found)]
        return found

    @property
    def pod_level_resources(self) -> bool:
        """Whether the feature gate PodLevelResources is on."""
        return self.config.placement.gate("PodLevelResources")


class EventKind(enum.StrEnum):
    """Kind of a turn's event. The value is the log event's name."""

    POD_ADMITTED = "pod_admitted"
    POD_REFUSED = "pod_refused"
    CHANGE_REFUSED = "change_refused"
    POD_RESIZED = "pod_resized"
    POD_ENDING = "pod_ending"
    POD_REMOVED = "pod_removed"
    POD_RELEASED = "pod_released"
    POD_FINISHED = "pod_finished"
    POD_RESTED = "pod_rested"
    POD_RESUMED = "pod_resumed"
    RESUME_REFUSED = "resume_refused"
    CONTAINER_STARTING = "container_starting"
    CONTAINER_EXITED = "container_exited"
    MANIFEST_SHADOWED = "manifest_shadowed"
    MANIFEST_NOTE = "manifest_note"
    POD_ADOPTED = "pod_adopted"
    PROMISE_CHANGED = "promise_changed"


class TurnEvent(Struct, frozen=True):
    """Event of a turn about one pod. It has the data for the log, the metrics and the tests."""

    kind: EventKind
    pod: Pod
    origin: Origin
    container: str | None = None
    fields: tuple[tuple[str, str | int], ...] = ()
    report: Report | None = None


class Turn(Struct, frozen=True):
    """Result of a turn: the next state and the events."""

    state: NodeState
    events: tuple[TurnEvent, ...] = ()
    deltas: tuple[MetricDelta, ...] = ()
    wake_at_ms: int | None = None
    """Next time at which something changes without an event. None means that no such time is known."""
    postponed: tuple[PodEntry, ...] = ()
    """Pods that wait for device plugins, each with the reason. The state doesn't contain these reasons."""
    seen_room: SeenRoom = {}
    """Room at the decisions on unmet requests. Requests are left out if more room can't make them due again."""
