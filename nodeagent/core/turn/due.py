"""Which unmet requests are due: there is more room than their last saved decision has seen. Nothing else brings them back by itself."""

from msgspec.structs import replace

from nodeagent.core.admission.room import NO_ROOM, Room
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.waiting import RequestKind, Retry
from nodeagent.core.turn.decision import find_room
from nodeagent.core.turn.world import SeenRoom, Turn, World

Request = tuple[PodEntry, RequestKind]


def is_due(request: Request, seen: Room, now: Room, world: World) -> bool:
    """Whether to decide an unmet request again.

    Args:
        request: the pod, and the kind of its request.
        seen: the room that the last decision has seen.
        now: the present room.
        world: the observations.
    """
    entry, kind = request
    retries = entry.list_retries(kind, for_room=world.config.retries_for_room)
    return (Retry.ROOM in retries and now.has_more_than(seen)) or (
        Retry.RESOURCE in retries and now.has_new_devices(seen, entry.pod)
    )


def list_tracked(state: NodeState, world: World) -> list[Request]:
    """Return the unmet requests that more room brings back."""
    return [
        (entry, kind)
        for entry in state.entries
        for kind, _ in entry.waiting
        if not {Retry.ROOM, Retry.RESOURCE}.isdisjoint(entry.list_retries(kind, for_room=world.config.retries_for_room))
    ]


def list_due(state: NodeState, seen: SeenRoom, world: World) -> list[Request]:
    """Return the unmet requests that are to be decided again."""
    tracked = list_tracked(state, world)
    now = find_room(state, world) if tracked else NO_ROOM
    return [one for one in tracked if is_due(one, seen.get(_key(one), NO_ROOM), now, world)]


def note_room(turn: Turn, before: NodeState, world: World) -> Turn:
    """Note the present room for the unmet requests that are not due. If the turn has made room too late for others, wake up at once.

    Args:
        turn: the turn so far.
        before: the state in which the turn has begun to decide unmet requests.
        world: the observations.
    """
    due = {_key(one) for one in list_due(turn.state, turn.seen_room, world)}
    tracked = [_key(one) for one in list_tracked(turn.state, world)]
    now = find_room(turn.state, world) if tracked else NO_ROOM
    if due and now.has_more_than(find_room(before, world)):
        turn = replace(turn, wake_at_ms=world.now_ms)
    return replace(turn, seen_room={one: turn.seen_room.get(one, NO_ROOM) if one in due else now for one in tracked})


def _key(request: Request) -> tuple[str, RequestKind]:
    entry, kind = request
    return entry.pod.uid, kind
