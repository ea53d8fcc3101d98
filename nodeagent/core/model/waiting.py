"""Unmet requests of pods. Each has the reason for its refusal, and the events after which it is tried again."""

import enum

from msgspec import Struct

from nodeagent.core.model.refusals import (
    OF_QUEUE,
    POD_NOT_KNOWN,
    RELEASED,
    RESIZE_DEFERRED,
    STATE_NOT_SAVED,
    WAITS_FOR_JOBS,
    WAITS_FOR_RESERVATION,
    Reason,
)


class RequestKind(enum.StrEnum):
    """Kind of an unmet request."""

    POD = "pod"
    """Request: all resources in the pod's manifest."""
    CHANGE = "change"
    """Request: the changed manifest of a pod. The pod keeps running unchanged."""
    RESUME = "resume"
    """Request: the CPUs, memory and devices of an idle pod, which the pod needs again because a unit is active."""
    CONTAINER = "container"
    """Request: the resources of a container of a container runtime."""


class Retry(enum.StrEnum):
    """Event after which a request is tried again."""

    MANIFEST = "manifest"
    """Event: the manifest changes."""
    REQUEST = "request"
    """Event: a user runs `nodeagent retry`."""
    ROOM = "room"
    """Event: other pods release resources, or the machine gets more resources."""
    RESOURCE = "resource"
    """Event: a device plugin reports devices of a requested resource."""
    DISK = "disk"
    """Event: the state can be saved again."""
    PLUGIN = "plugin"
    """Event: a device plugin answers."""
    OWNER = "owner"
    """Event: the program that runs the container repeats its request."""
    QUEUE = "queue"
    """Event: jobs before this job in the queue start or end."""
    RESERVATION = "reservation"
    """Event: a reservation begins, ends or is cancelled."""


class Waiting(Struct, frozen=True):
    """An unmet request of a pod."""

    reason: str
    message: str
    at_ms: int

    @property
    def is_undecided(self) -> bool:
        """Whether the request waits for the answer of a device plugin. The request is decided after the answer."""
        return self.reason == Reason.DEVICE_PLUGINS_SLOW.value

    @property
    def is_for_room(self) -> bool:
        """Whether the request could be granted if other pods released their resources."""
        return is_for_room(self.reason)

    def retries(
        self, asked: RequestKind, *, requests_devices: bool = False, for_room: bool = False
    ) -> tuple[Retry, ...]:
        """Return the events after which the request is tried again.

        Args:
            asked: kind of the request.
            requests_devices: whether the pod requests devices by count.
            for_room: whether pods that were refused for lack of resources are tried again (`retryRefused`).
        """
        if self.reason in _ALWAYS:
            return (_ALWAYS[self.reason],)
        if self.reason in OF_QUEUE:
            queue = {WAITS_FOR_JOBS: (Retry.QUEUE,), WAITS_FOR_RESERVATION: (Retry.RESERVATION,)}.get(self.reason, ())
            return (*queue, Retry.ROOM, *((Retry.RESOURCE,) if requests_devices else ()))
        if self.is_undecided and asked is not RequestKind.CONTAINER:
            return (Retry.PLUGIN,)
        room = (Retry.ROOM,) if for_room and self.is_for_room else ()
        match asked:
            case RequestKind.CONTAINER:
                # kubelet repeats each refused request. Most repetitions get the stored refusal without a new decision.
                first = Retry.OWNER if self.reason in _DECIDED_WHEN_REPEATED else Retry.MANIFEST
                return (first, Retry.REQUEST, *room)
            case RequestKind.RESUME:
                return (Retry.ROOM,)
            case RequestKind.CHANGE:
                by_itself = self.reason == RESIZE_DEFERRED
                return (Retry.MANIFEST, Retry.REQUEST, *((Retry.ROOM,) if by_itself else ()))
            case RequestKind.POD:
                resource = (Retry.RESOURCE,) if requests_devices and self.reason != RELEASED else ()
                return (Retry.MANIFEST, Retry.REQUEST, *resource, *room)


def is_for_room(reason: str) -> bool:
    """Whether a request that was refused for this reason could be granted if other pods released their resources."""
    return reason in _FOR_ROOM or reason.startswith(_OUT_OF)


_ALWAYS = {STATE_NOT_SAVED: Retry.DISK}
"""Event after which a request is tried again, for each reason that has the same single event for all kinds of requests."""
_DECIDED_WHEN_REPEATED = frozenset({POD_NOT_KNOWN, RESIZE_DEFERRED, Reason.DEVICE_PLUGINS_SLOW.value})
_FOR_ROOM = frozenset(
    {
        Reason.TOPOLOGY_AFFINITY.value,
        Reason.UNEXPECTED_ADMISSION.value,
        Reason.CORE_CLASS.value,
        Reason.DEVICE.value,
        Reason.CLAIM.value,
    }
)
_OUT_OF = "OutOf"
"""Prefix of kubelet's reasons for lack of a resource: `OutOfcpu`, `OutOfmemory`, `OutOfpods`."""
