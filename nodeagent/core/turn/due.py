"""Choice of the unmet requests on which the agent decides again: those for which there is more room than at their last saved decision."""

from collections.abc import Iterator

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.room import NO_ROOM, Room
from nodeagent.core.model.state import NodeState, PodEntry
from nodeagent.core.model.waiting import RequestKind, Retry
from nodeagent.core.turn.decision import find_room
from nodeagent.core.turn.world import RequestKey, SeenRoom, Turn, World


class UnmetRequest(Struct, frozen=True):
    """Unmet request on which the agent decides again when there is more room."""

    key: RequestKey
    retries: tuple[Retry, ...]
    devices: frozenset[str] = frozenset()
    """Names of the extended resources that the pod requests."""

    def is_due(self, seen: SeenRoom, now: Room) -> bool:
        """Return whether there is more room now than at the last decision, so that a new decision may have another result."""
        before = seen.get(self.key, NO_ROOM)
        return (Retry.ROOM in self.retries and now.has_more_than(before)) or (
            Retry.RESOURCE in self.retries and now.has_new_devices(before, self.devices)
        )


def list_unmet(entry: PodEntry, world: World) -> Iterator[UnmetRequest]:
    """Yield a pod's unmet requests on which the agent decides again when there is more room. Requests of a container runtime are
    left out.
    """
    for kind, _ in () if entry.is_requested_per_container else entry.waiting:
        retries = entry.list_retries(kind, for_room=world.config.retries_for_room)
        if Retry.ROOM in retries or Retry.RESOURCE in retries:
            devices = frozenset(name for container in entry.pod.containers for name, _ in container.devices)
            yield UnmetRequest(RequestKey(entry.pod.uid, kind), retries, devices)


def _list_all_unmet(state: NodeState, world: World) -> list[UnmetRequest]:
    found = [one for entry in world.awake(state.entries) for one in list_unmet(entry, world)]
    for refused in state.runtime.refused if world.config.retries_for_room else ():
        if refused.is_for_room:
            key = RequestKey(refused.key.pod_uid, RequestKind.CONTAINER, refused.key.name)
            found.append(UnmetRequest(key, (Retry.ROOM,)))
    return found


def list_due(state: NodeState, seen: SeenRoom, world: World) -> list[RequestKey]:
    """Return the keys of the unmet requests on which the agent should decide in this turn."""
    unmet = _list_all_unmet(state, world)
    now = find_room(state, world) if unmet else NO_ROOM
    return [one.key for one in unmet if one.is_due(seen, now)]


def note_room(turn: Turn, before: NodeState, world: World) -> Turn:
    """Record the present room for all unmet requests that aren't due. If requests are due because the turn released resources after it had
    decided on them, let another turn follow at once.

    Args:
        turn: the result of the turn so far.
        before: the state before the turn's decisions on unmet requests.
        world: the observations of the turn.
    """
    unmet = _list_all_unmet(turn.state, world)
    now = find_room(turn.state, world) if unmet else NO_ROOM
    due = {one.key for one in unmet if one.is_due(turn.seen_room, now)}
    if due and now.has_more_than(find_room(before, world)):
        turn = replace(turn, wake_at_ms=world.now_ms)
    seen = {one.key: turn.seen_room.get(one.key, NO_ROOM) if one.key in due else now for one in unmet}
    return replace(turn, seen_room=seen)
