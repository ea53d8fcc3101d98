"""Unmet requests of pods, with the reason, and with the events after which they are tried again."""

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
    """Everything that a pod requests."""
    CHANGE = "change"
    """The pod of a changed manifest. Meanwhile the pod keeps running unchanged."""
    RESUME = "resume"
    """The CPUs, memory and devices that a pod released while its units were inactive."""
    CONTAINER = "container"
    """A container that a container runtime runs."""


class Retry(enum.StrEnum):
    """Event after which a request is tried again."""

    MANIFEST = "manifest"
    """The manifest changes."""
    REQUEST = "request"
    """A user runs `nodeagent retry`."""
    ROOM = "room"
    """Other pods release resources, or the machine gets more of them."""
    RESOURCE = "resource"
    """A device plugin reports devices of a resource that the pod requests."""
    DISK = "disk"
    """The state can be saved again."""
    PLUGIN = "plugin"
    """A device plugin answers."""
    OWNER = "owner"
    """The program that runs the container repeats its request."""
    QUEUE = "queue"
    """The jobs before it in the queue start or end."""
    RESERVATION = "reservation"
    """A reservation begins, ends or is cancelled."""


class Waiting(Struct, frozen=True):
    """An unmet request of a pod."""

    reason: str
    message: str
    at_ms: int

    @property
    def is_undecided(self) -> bool:
        """Whether the request waits for a device plugin's answer. The answer leads to a decision."""
        return self.reason == Reason.DEVICE_PLUGINS_SLOW.value

    @property
    def is_for_room(self) -> bool:
        """Whether the request could be met with resources that other pods hold now."""
        return is_for_room(self.reason)

    def retries(
        self, asked: RequestKind, *, requests_devices: bool = False, for_room: bool = False
    ) -> tuple[Retry, ...]:
        """Return the events after which the request is tried again.

        Args:
            asked: kind of the request.
            requests_devices: whether the pod requests devices by count.
            for_room: whether the node tries pods again that were refused for lack of resources (`retryRefused`).
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
                # kubelet repeats each refused request. Most repetitions get the stored answer without a new decision.
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
    """Whether a request refused for this reason could be met with resources that other pods hold now."""
    return reason in _FOR_ROOM or reason.startswith(_OUT_OF)


_ALWAYS = {STATE_NOT_SAVED: Retry.DISK}
"""Event for each reason that alone determines the event, whatever is requested."""
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
"""Prefix of kubelet's reasons if the node lacks some resource: `OutOfcpu`, `OutOfmemory`, `OutOfpods`."""
