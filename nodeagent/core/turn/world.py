"""Input and result of one turn: the observations, and the next state with its events."""

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
    """Identity of an unmet request, by pod, kind of request, and container."""

    pod_uid: str
    kind: RequestKind
    container: str = ""
    """Name of the container whose request a container runtime has made. Empty if the request is for the whole pod."""


SeenRoom = Mapping[RequestKey, Room]
"""Room that was available at the last decision on each unmet request."""


class World(Struct, frozen=True):
    """All observations of one turn."""

    config: Config
    managers: Managers
    allocatable: Allocatable
    sources: tuple[PodSource, ...]
    """Sources of pods. If two contain the same pod, the earlier source takes precedence. While a source is unreadable, its pods stay
    unchanged.
    """
    runs: Runs | None
    """Runs that the launcher lists. None means that the launcher doesn't answer."""
    observed: ObservedCgroups
    now_ms: int
    retried: frozenset[str] = frozenset()
    """UIDs of pods for which a user wants a new decision, on the refused pod or on its refused change (`nodeagent retry`)."""
    released: frozenset[str] = frozenset()
    """UIDs of pods that a user wants to end although their manifests exist (`nodeagent release`)."""
    inactive_units: frozenset[str] = frozenset()
    """Cgroup paths of pinned units that are neither active nor being started."""
    has_reported_all: bool = True
    """Whether every configured container runtime has listed its containers since the agent's start."""
    asked_to_end: frozenset[str] = frozenset()
    """IDs of the runs that the agent has tried to end by SIGTERM since the agent's start. SIGTERM is tried only once per run."""
    seen_room: SeenRoom = {}
    """Room at the last saved decision on each unmet request."""
    quiet: frozenset[str] = frozenset()
    """UIDs of pods that the stages skip, because nothing has changed for them (quiet.py). The set only saves time. Without it, the turn has
    the same result.
    """
    lead_ms: int = 0
    """Wall-clock time minus the time since boot, in milliseconds."""
    boot_id: str = ""
    """ID of the current boot, as reported by the kernel. Empty means that the ID is unknown."""
    kernel: Kernel | None = None
    """Properties of the kernel that influence cgroups. None means that no domain needs them."""
    last_awake: list[tuple[Sequence[PodEntry], frozenset[str], Sequence[PodEntry]]] = field(default_factory=list)
    """Last four results of `awake`, each with its inputs, because most stages call it for the same states."""

    last_waiting: list[tuple[NodeState, PodSource, str, list[QueuedJob]]] = field(default_factory=list)
    """Cached list of waiting jobs, with its inputs: the state, the source and the reservation."""

    def awake(self, entries: Sequence[PodEntry]) -> Sequence[PodEntry]:
        """Return the pods that aren't quiet, so that the stages have to examine them."""
        if not self.quiet:
            return entries
        for known, quiet, found in self.last_awake:
            if known is entries and quiet is self.quiet:
                return found
        found = [entry for entry in entries if entry.pod.uid not in self.quiet]
        self.last_awake[:] = [*self.last_awake[-3:], (entries, self.quiet, found)]
        return found

    @property
    def pod_level_resources(self) -> bool:
        """Return whether the feature gate PodLevelResources is on."""
        return self.config.placement.gate("PodLevelResources")


class EventKind(enum.StrEnum):
    """Kind of a turn's event. Its value is the name of the event in the log."""

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
    """Event about one pod, with data for the log and the metrics."""

    kind: EventKind
    pod: Pod
    origin: Origin
    container: str | None = None
    fields: tuple[tuple[str, str | int], ...] = ()
    report: Report | None = None


class Turn(Struct, frozen=True):
    """Result of a turn, to be saved and carried out."""

    state: NodeState
    events: tuple[TurnEvent, ...] = ()
    deltas: tuple[MetricDelta, ...] = ()
    wake_at_ms: int | None = None
    """Earliest time at which another turn is needed even if no event occurs. None means that no such time is known."""
    postponed: tuple[PodEntry, ...] = ()
    """Pods whose decision waits for an answer of a device plugin. Each entry has the reason. The state doesn't contain these entries."""
    seen_room: SeenRoom = {}
    """Room at the last decision on each unmet request. Requests that don't become due by more room are left out."""
