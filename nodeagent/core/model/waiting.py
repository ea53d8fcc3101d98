"""Unmet requests of pods, with the reason for each refusal and the events after which the agent decides again."""

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
    """Kind of a request that the agent has refused or deferred."""

    POD = "pod"
    """Request to admit the pod with all resources in its manifest."""
    CHANGE = "change"
    """Request to apply a pod's changed manifest. The pod of the earlier manifest keeps running."""
    RESUME = "resume"
    """Request to allocate CPUs, memory and devices to an idle pod, because one of its units is active again."""
    CONTAINER = "container"
    """Request of a container runtime to place one of its containers."""


class Retry(enum.StrEnum):
    """Kind of event after which the agent decides again on an unmet request."""

    MANIFEST = "manifest"
    """Change of the pod's manifest."""
    REQUEST = "request"
    """Request by a user for a new decision (`nodeagent retry`)."""
    ROOM = "room"
    """Release of resources by other pods, or an increase of the machine's resources."""
    RESOURCE = "resource"
    """Report of a device plugin about devices of a resource that the pod requests."""
    DISK = "disk"
    """Successful save of the state after a failed save."""
    PLUGIN = "plugin"
    """Answer of a device plugin that was asked about the pod."""
    OWNER = "owner"
    """Repeated request of the container runtime for the same container."""
    QUEUE = "queue"
    """Start or end of a job that precedes this job in the queue."""
    RESERVATION = "reservation"
    """Start, end or cancellation of a reservation."""


class Waiting(Struct, frozen=True):
    """An unmet request: the agent has refused or deferred it, and may decide on it again."""

    reason: str
    message: str
    at_ms: int

    @property
    def is_undecided(self) -> bool:
        """Whether the decision waits for the answer of a device plugin."""
        return self.reason == Reason.DEVICE_PLUGINS_SLOW.value

    @property
    def is_for_room(self) -> bool:
        """Whether the agent could grant the request if other pods released their resources."""
        return is_for_room(self.reason)

    def retries(
        self, asked: RequestKind, *, requests_devices: bool = False, for_room: bool = False
    ) -> tuple[Retry, ...]:
        """Return the events after which the agent decides on the request again.

        Args:
            asked: kind of the request.
            requests_devices: whether the pod requests extended resources.
            for_room: whether the agent decides again on pods that were refused for lack of resources (`retryRefused`).
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
    """Return whether a request that was refused for this reason could be granted if other pods released their resources."""
    return reason in _FOR_ROOM or reason.startswith(_OUT_OF)


_ALWAYS = {STATE_NOT_SAVED: Retry.DISK}
"""Event after which the agent decides again, by refusal reason. Only reasons for which the kind of the request doesn't matter are
listed.
"""
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
