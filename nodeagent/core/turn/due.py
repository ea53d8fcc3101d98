"""Due requests: unmet requests for which there is more room than their last saved decision has seen. Nothing else makes a request due."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.room import NO_ROOM, Room
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.waiting import RequestKind, Retry
from nodeagent.core.turn.decision import find_room
from nodeagent.core.turn.world import SeenRoom, Turn, World


class UnmetRequest(Struct, frozen=True):
    """An unmet request that is tried again when there is more room."""

    entry: PodEntry
    kind: RequestKind
    retries: tuple[Retry, ...]

    @property
    def key(self) -> tuple[str, RequestKind]:
        return self.entry.pod.uid, self.kind

    def is_due(self, seen: SeenRoom, now: Room) -> bool:
        """Whether there is enough new room to decide the request again."""
        before = seen.get(self.key, NO_ROOM)
        return (Retry.ROOM in self.retries and now.has_more_than(before)) or (
            Retry.RESOURCE in self.retries and now.has_new_devices(before, self.entry.pod)
        )


def list_unmet(entry: PodEntry, world: World) -> Iterator[UnmetRequest]:
    """Return a pod's unmet requests that are tried again when there is more room."""
    for kind, _ in entry.waiting:
        retries = entry.list_retries(kind, for_room=world.config.retries_for_room)
        if Retry.ROOM in retries or Retry.RESOURCE in retries:
            yield UnmetRequest(entry, kind, retries)


def list_due(state: NodeState, seen: SeenRoom, world: World) -> list[UnmetRequest]:
    """Return the unmet requests that are to be decided again now."""
    unmet = [one for entry in state.entries for one in list_unmet(entry, world)]
    now = find_room(state, world) if unmet else NO_ROOM
    return [one for one in unmet if one.is_due(seen, now)]


def note_room(turn: Turn, before: NodeState, world: World) -> Turn:
    """Note the present room for the unmet requests that are not due. If the turn has made room too late for others, wake up at once.

    Args:
        turn: the turn so far.
        before: the state at which the turn began to decide unmet requests.
        world: the observations.
    """
    unmet = [one for entry in turn.state.entries for one in list_unmet(entry, world)]
    now = find_room(turn.state, world) if unmet else NO_ROOM
    due = {one.key for one in unmet if one.is_due(turn.seen_room, now)}
    if due and now.has_more_than(find_room(before, world)):
        turn = replace(turn, wake_at_ms=world.now_ms)
    seen = {one.key: turn.seen_room.get(one.key, NO_ROOM) if one.key in due else now for one in unmet}
    return replace(turn, seen_room=seen)
