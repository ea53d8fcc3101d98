"""Draft of a turn: the state and events so far. Each stage takes the draft and returns the next one, and stages exchange data in no other
way.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Report, remove_pod
from nodeagent.core.metrics.deltas import MetricDelta
from nodeagent.core.model.state import NodeState, PodEntry, RefusedChange
from nodeagent.core.model.waiting import RequestKind, Waiting
from nodeagent.core.turn import lifecycle
from nodeagent.core.turn.decision import find_room
from nodeagent.core.turn.due import list_unmet
from nodeagent.core.turn.pod_sources import Manifest
from nodeagent.core.turn.world import EventKind, RequestKey, SeenRoom, TurnEvent, World


class Draft(Struct, frozen=True):
    """Turn in progress."""

    state: NodeState
    events: tuple[TurnEvent, ...] = ()
    deltas: tuple[MetricDelta, ...] = ()
    manifests: Mapping[str, Manifest] = {}
    """Manifests in effect, by `namespace/name` of the pod."""
    changed: Mapping[str, Manifest] = {}
    """Manifests that differ from their running pods, by the pod's UID. The resize stage removes the manifests that it has applied or
    refused.
    """
    new: tuple[Manifest, ...] = ()
    """Manifests of pods without an entry, on which this turn still has to decide."""
    postponed: tuple[PodEntry, ...] = ()
    """Pods whose decision waits for an answer of a device plugin. Each entry has the reason. The state doesn't contain these entries."""
    seen_room: SeenRoom = {}
    """Room at the last decision on each unmet request, in earlier turns and in this one."""
    is_unfinished: bool = False
    """Whether another turn should follow at once, for decisions that this turn couldn't make."""

    def plus(self, state: NodeState, *events: TurnEvent, deltas: tuple[MetricDelta, ...] = ()) -> "Draft":
        """Return the draft with another state, and with additional events and metric changes."""
        return replace(self, state=state, events=self.events + events, deltas=self.deltas + deltas)

    def postponing(self, entry: PodEntry) -> "Draft":
        """Return the draft with this pod added to `postponed`, because only a later turn can decide on it."""
        return replace(self, postponed=(*self.postponed, entry))

    def is_due(self, entry: PodEntry, kind: RequestKind, world: World) -> bool:
        """Return whether the agent should decide again on an unmet request of this kind."""
        now = find_room(self.state, world)
        return any(one.key.kind is kind and one.is_due(self.seen_room, now) for one in list_unmet(entry, world))

    def having_refused(self, entry: PodEntry, kind: RequestKind, world: World) -> "Draft":
        """Record the room at a refusal, if the request can become due by more room."""
        if all(one.key.kind is not kind for one in list_unmet(entry, world)):
            return self
        return self.with_seen_room(RequestKey(entry.pod.uid, kind), world)

    def with_seen_room(self, key: RequestKey, world: World) -> "Draft":
        """Record the room at the decision on an unmet request."""
        return replace(self, seen_room={**self.seen_room, key: find_room(self.state, world)})

    def with_ending(self, entry: PodEntry, world: World) -> "Draft":
        """Begin to end a pod. If the launcher hasn't started its processes, as in a job, the event tells how many of them the OOM killer
        has killed.
        """
        ending = replace(entry, deleting_since_ms=world.now_ms)
        ending = lifecycle.advance(ending, world.runs or {}, world.observed, world.now_ms, world.asked_to_end)
        seen = [world.observed.get(entry.container_path(c.name)) for c in entry.pod.containers if not c.is_launched]
        kills = sum(cgroup.oom_kills for cgroup in seen if cgroup is not None)
        fields = (("oom_kills", kills),) if kills else ()
        event = TurnEvent(EventKind.POD_ENDING, entry.pod, entry.origin, None, fields)
        return self.plus(self.state.with_entry(ending), event)

    def without(self, entry: PodEntry, world: World, kind: EventKind = EventKind.POD_REMOVED) -> "Draft":
        """Remove an ended pod from the state and release its allocation. `kind` is the kind of event that reports this."""
        promises, deltas = remove_pod(world.managers, self.state.promises, entry.pod.uid)
        state = replace(self.state.without(entry.pod.uid), promises=promises)
        return self.plus(state, TurnEvent(kind, entry.pod, entry.origin), deltas=deltas)

    def with_admitted(self, entry: PodEntry, manifest: Manifest, decision: Admitted) -> "Draft":
        """Add the entry of an admitted pod."""
        state = replace(self.state, promises=decision.promises, entries=(*self.state.entries, entry))
        fields = (("qos", entry.qos.value), ("unused_fields", " ".join(manifest.unused_fields)))
        event = TurnEvent(EventKind.POD_ADMITTED, entry.pod, manifest.origin, None, fields, decision.report)
        return self.plus(state, event, deltas=decision.deltas)

    def with_refused_change(self, entry: PodEntry, manifest: Manifest, refusal: Waiting) -> "Draft":
        """Record the refusal of a changed manifest. The pod itself keeps running unchanged."""
        stays = replace(entry, origin=manifest.origin, refused_change=RefusedChange(manifest.pod, refusal))
        event = make_refusal_event(stays, refusal, kind=EventKind.CHANGE_REFUSED)
        return self.plus(self.state.with_entry(stays), *make_note_events(manifest), event)


def record_refusal(state: NodeState, entry: PodEntry, refusal: Waiting) -> NodeState:
    """Record the refusal of a pod. Its entry replaces any earlier entry of the same pod."""
    others = state.without(entry.pod.uid).entries
    return replace(state, entries=(*others, replace(entry, refusal=refusal, containers=())))


def make_refusal_event(
    entry: PodEntry,
    refusal: Waiting,
    report: Report | None = None,
    container: str | None = None,
    kind: EventKind = EventKind.POD_REFUSED,
) -> TurnEvent:
    fields = (("reason", refusal.reason), ("message", refusal.message))
    return TurnEvent(kind, entry.pod, entry.origin, container, fields, report)


def make_note_events(manifest: Manifest) -> Iterator[TurnEvent]:
    """Yield an event for each probable mistake in a manifest."""
    for note in manifest.notes:
        yield TurnEvent(EventKind.MANIFEST_NOTE, manifest.pod, manifest.origin, None, (("problem", note),))


def is_to_try(draft: Draft, entry: PodEntry, changed: Manifest, world: World) -> bool:
    """Return whether this turn should decide on a pod's changed manifest."""
    if not entry.is_active or entry.deleting_since_ms is not None or entry.pod == changed.pod:
        return False
    known = entry.refused_change
    if known is None or known.pod != changed.pod or entry.pod.uid in world.retried:
        return True
    return draft.is_due(entry, RequestKind.CHANGE, world)
