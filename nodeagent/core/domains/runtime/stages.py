"""Table of the effects that each event has on a container of a container runtime, by the container's condition.

An event that isn't listed for a condition is late or out of order, and therefore illegal. The agent counts it, changes nothing, denies it
if it is a creation or a start, and then lists the runtime's containers. Only such a list, and never a single event, can turn an ended or
unknown container into a running one.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType

from nodeagent.core.model.runtime_containers import MadeContainer, Stage


class Condition(Enum):
    """Condition of a container: its stage, and whether it is placed, which means that it uses the allocation of its key."""

    UNKNOWN = "unknown"
    CREATED = "created"
    CREATED_PLACED = "created, placed"
    STARTED = "started"
    STARTED_PLACED = "started, placed"
    STOPPED = "stopped"
    REMOVED = "removed"


class ContainerEvent(StrEnum):
    CREATE = "create"
    """Call of the runtime before it creates the container."""
    START = "start"
    """Call of the runtime before the container's first process starts. The process waits for the answer."""
    UPDATE = "update"
    """Call of the runtime before it changes the container's amounts."""
    STOP = "stop"
    REMOVE = "remove"
    POD_END = "pod_end"
    """Stop or removal of the container's pod."""
    SEEN_RUNNING = "seen_running"
    """Presence of the container in a list of running containers that the agent has requested. A container that is missing from this list
    may still be in preparation.
    """
    LISTED_CREATED = "listed_created"
    """Presence of the container, in the state "created", in the list of NRI's call Synchronize. The next two members mean the same for the
    states "running" and "stopped".
    """
    LISTED_RUNNING = "listed_running"
    LISTED_STOPPED = "listed_stopped"
    UNLISTED = "unlisted"
    """Absence of the container from the list of NRI's call Synchronize."""


class Effect(Enum):
    """Effect of a legal event, in addition to the container's new stage."""

    NOTHING = "nothing"
    OFFER = "place the container if its key has the requested amounts allocated; else repeat a refusal of this request, or decide on it"
    OFFER_CHANGE = "place, refuse or decide the container with the amounts of the update"
    LET_START = "let the container start if its cgroup has the desired values and no other process is on its CPUs"
    DENY_START = "deny the start, because the container was not placed"
    COMPARE = "compare the values of the container with the allocation recorded for its pod and name"
    COUNT_AND_COMPARE = (
        "compare likewise, and count the container as started without a call unless it has the allocated values"
    )


Transition = tuple[Stage | None, Effect]
"""New stage of the container, and effect of the event. If the stage is None, the container isn't entered in the registry."""

_C, _E, _S = Condition, ContainerEvent, Stage
_ENDS: dict[ContainerEvent, Transition] = {
    _E.STOP: (_S.STOPPED, Effect.NOTHING),
    _E.REMOVE: (_S.REMOVED, Effect.NOTHING),
    _E.POD_END: (_S.REMOVED, Effect.NOTHING),
}
_LISTED: dict[ContainerEvent, Transition] = {
    _E.LISTED_CREATED: (_S.CREATED, Effect.COMPARE),
    _E.LISTED_RUNNING: (_S.STARTED, Effect.COMPARE),
    _E.LISTED_STOPPED: (_S.STOPPED, Effect.NOTHING),
    _E.UNLISTED: (_S.REMOVED, Effect.NOTHING),
}
_STARTED_WITHOUT_CALL: dict[ContainerEvent, Transition] = {
    _E.SEEN_RUNNING: (_S.STARTED, Effect.COUNT_AND_COMPARE),
    _E.LISTED_RUNNING: (_S.STARTED, Effect.COUNT_AND_COMPARE),
}
_SEEN = _E.SEEN_RUNNING

TABLE: Mapping[Condition, Mapping[ContainerEvent, Transition]] = MappingProxyType(
    {
        _C.UNKNOWN: {
            _E.CREATE: (_S.CREATED, Effect.OFFER),
            _E.START: (None, Effect.DENY_START),
            # A refused container becomes unknown again, but the runtime still reports its end.
            _E.STOP: (None, Effect.NOTHING),
            _E.REMOVE: (None, Effect.NOTHING),
            **_LISTED,
            **_STARTED_WITHOUT_CALL,
        },
        _C.CREATED: {
            _E.CREATE: (_S.CREATED, Effect.OFFER),
            _E.START: (_S.CREATED, Effect.DENY_START),
            _E.UPDATE: (_S.CREATED, Effect.OFFER_CHANGE),
            **_ENDS,
            **_LISTED,
            **_STARTED_WITHOUT_CALL,
        },
        _C.CREATED_PLACED: {
            _E.CREATE: (_S.CREATED, Effect.OFFER),
            _E.START: (_S.STARTED, Effect.LET_START),
            _E.UPDATE: (_S.CREATED, Effect.OFFER_CHANGE),
            **_ENDS,
            **_LISTED,
            **_STARTED_WITHOUT_CALL,
        },
        _C.STARTED: {
            _E.START: (_S.STARTED, Effect.DENY_START),
            _E.UPDATE: (_S.STARTED, Effect.OFFER_CHANGE),
            **_ENDS,
            **_LISTED,
            _SEEN: (_S.STARTED, Effect.NOTHING),
        },
        _C.STARTED_PLACED: {
            _E.START: (_S.STARTED, Effect.LET_START),
            _E.UPDATE: (_S.STARTED, Effect.OFFER_CHANGE),
            **_ENDS,
            **_LISTED,
            _SEEN: (_S.STARTED, Effect.NOTHING),
        },
        _C.STOPPED: {**_ENDS, **_LISTED, _SEEN: (_S.STOPPED, Effect.NOTHING)},
        _C.REMOVED: {
            _E.STOP: (_S.REMOVED, Effect.NOTHING),
            _E.REMOVE: (_S.REMOVED, Effect.NOTHING),
            _E.POD_END: (_S.REMOVED, Effect.NOTHING),
            **_LISTED,
            _SEEN: (_S.REMOVED, Effect.NOTHING),
        },
    }
)


def condition_of(made: MadeContainer | None) -> Condition:
    if made is None:
        return Condition.UNKNOWN
    match made.stage:
        case Stage.CREATED:
            return Condition.CREATED_PLACED if made.is_placed else Condition.CREATED
        case Stage.STARTED:
            return Condition.STARTED_PLACED if made.is_placed else Condition.STARTED
        case Stage.STOPPED:
            return Condition.STOPPED
        case Stage.REMOVED:
            return Condition.REMOVED


def find_transition(made: MadeContainer | None, event: ContainerEvent) -> Transition | None:
    """Return the new stage and the effect of an event. None means that the event is illegal in the container's condition."""
    return TABLE[condition_of(made)].get(event)
