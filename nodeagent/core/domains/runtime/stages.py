"""Table of the effects of each event on a container of a runtime.

An event that is missing in a condition's row is illegal in this condition, because it is late or out of order. An illegal event is
counted and changes nothing. An illegal creation or start is denied. The agent then lists the runtime's containers. A single event
therefore never marks an ended or unknown container as running. Only a list of containers (Synchronize, or the agent's own query) does.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType

from nodeagent.core.model.runtime_containers import MadeContainer, Stage


class Condition(Enum):
    """Stage of a container, and whether the container is placed, that is, has the allocation of its key."""

    UNKNOWN = "unknown"
    CREATED = "created"
    CREATED_PLACED = "created, placed"
    STARTED = "started"
    STARTED_PLACED = "started, placed"
    STOPPED = "stopped"
    REMOVED = "removed"


class ContainerEvent(StrEnum):
    CREATE = "create"
    """Event: the runtime is about to create the container."""
    START = "start"
    """Event: the container's first process waits to start."""
    UPDATE = "update"
    """Event: the runtime is about to change a container's amounts."""
    STOP = "stop"
    REMOVE = "remove"
    POD_END = "pod_end"
    """Event: the container's pod was stopped or removed."""
    SEEN_RUNNING = "seen_running"
    """Event: the container is in a list of running containers. Containers missing from this list may still be in preparation."""
    LISTED_CREATED = "listed_created"
    """Event: Synchronize lists the container in the state "created". The next two members stand for other states in the same way."""
    LISTED_RUNNING = "listed_running"
    LISTED_STOPPED = "listed_stopped"
    UNLISTED = "unlisted"
    """Event: Synchronize doesn't list the container."""


class Effect(Enum):
    """Effect of a legal event on the registry, besides the new stage."""

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
"""Stage after the event, and the effect of the event. If the stage is None, the container stays unknown."""

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
    """Return the row of the table. None means that the event is illegal in the container's condition."""
    return TABLE[condition_of(made)].get(event)
