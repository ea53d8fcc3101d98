"""Refusals of pods and of starts, as values. Reasons and texts are kubelet's, if kubelet has such a refusal."""

import enum

from msgspec import Struct


class Reason(enum.StrEnum):
    """Reason for refusing a pod (the pod's status reason)."""

    TOPOLOGY_AFFINITY = "TopologyAffinityError"
    UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
    SMT_ALIGNMENT = "SMTAlignmentError"
    EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
    CORE_CLASS = "CoreClassUnavailable"
    """The node can't give the pod CPUs of the core class that it requires. kubelet doesn't have this reason."""
    DEVICE = "DeviceUnavailable"
    """The node lacks a device that the pod requests to be near. kubelet doesn't have this reason."""
    CLAIM = "ResourceClaimUnavailable"
    """The pod's resource claims can't be met. kubelet doesn't have this reason."""
    CPU_PLUGIN_FAILED = "CPUPluginFailed"
    """A CPU plugin gave no answer, or an invalid one. kubelet doesn't have this reason."""
    CPU_PLUGIN_REFUSED = "CPUPluginRefused"
    """A CPU plugin's Allocate rejected the chosen CPUs. kubelet doesn't have this reason."""
    DEVICE_PLUGINS_SLOW = "DevicePluginsSlow"
    """Device plugins didn't answer within the time that a turn waits. The next turn decides on the pod again. kubelet doesn't have this
    reason.
    """


STATE_NOT_SAVED = "StateNotSaved"
"""Reason of pods refused while the state can't be saved. kubelet doesn't have this reason, because it continues without saving."""
RELEASED = "Released"
"""Reason of a pod that a user has ended and that stays ended although its manifest still exists (D7)."""
WAITS_FOR_ROOM = "WaitingForRoom"
"""Reason of a queued job that waits for resources of other pods. kubelet doesn't have this reason."""
WAITS_FOR_JOBS = "WaitingForJobs"
"""Reason of a job behind waiting jobs in the queue. The decisions on those jobs are made first. kubelet doesn't have this reason."""
WAITS_FOR_RESERVATION = "WaitingForReservation"
"""Reason of a job that a reservation prevents from starting. The job needs reserved resources, or its own reservation has not begun or is
used up. kubelet doesn't have this reason.
"""
OF_QUEUE = (WAITS_FOR_ROOM, WAITS_FOR_JOBS, WAITS_FOR_RESERVATION)
RESERVATION_OVER = "ReservationOver"
"""Reason of a job whose reservation has ended or was cancelled. kubelet doesn't have this reason."""
UNIT_TAKEN = "UnitTaken"
"""Reason of a pod that pins the same systemd unit as another pod. kubelet doesn't have this reason."""

INVALID_ANNOTATIONS = "InvalidAnnotations"
"""Refusal reason for a runtime's container. Its pod's annotations are invalid or contradict kubelet's data."""
POD_NOT_KNOWN = "PodNotKnown"
"""Refusal reason for a runtime's container. The managers align pods as a whole, but the agent doesn't know the whole pod."""
UID_TAKEN = "UIDTaken"
"""Refusal reason for a runtime's container. Its pod has the same UID as another pod of the agent."""
INVALID_NAME = "InvalidName"
"""Refusal reason for a runtime's container. Its pod has a name that Kubernetes doesn't allow. Such a pod isn't saved, because the saved
state would be unreadable.
"""
RESIZE_INFEASIBLE = "ResizeInfeasible"
"""Reason of a resize that this node can't perform at all, or only with a restart. For a runtime's container, the resize would change
exclusive CPUs or pinned memory, which kubelet's static policies refuse as well.
"""
RESIZE_DEFERRED = "ResizeDeferred"
"""Reason of a resize that has to wait, because other pods hold the needed resources. A new decision on the resize is made when resources
are released.
"""
OF_RESIZES = (RESIZE_DEFERRED, RESIZE_INFEASIBLE)
OF_RUNTIMES = (INVALID_ANNOTATIONS, POD_NOT_KNOWN, UID_TAKEN, INVALID_NAME, RESIZE_INFEASIBLE)


class Refusal(Struct, frozen=True):
    """Refusal to admit a pod."""

    reason: Reason
    message: str


class NotResized(Struct, frozen=True):
    """Refusal to resize a running pod."""

    reason: str
    message: str

    @property
    def is_deferred(self) -> bool:
        """Whether the resize may succeed once other pods release resources."""
        return self.reason == RESIZE_DEFERRED


def refuse_resize_for_good(message: str) -> NotResized:
    """Refuse a resize that can't succeed while the pod runs."""
    return NotResized(RESIZE_INFEASIBLE, message)


def defer_resize(message: str) -> NotResized:
    """Refuse a resize that may succeed later."""
    return NotResized(RESIZE_DEFERRED, message)


class StartRefused(Struct, frozen=True):
    """Refusal to start, because configuration, machine and saved state don't match. The agent manages nothing then."""

    message: str
    about: str
    """Configuration field or file that the user has to check."""
    entry: str | int | None = None
    """Entry of the field, by key or index. None means the field as a whole."""
    rests_on: tuple[str, ...] = ()
    """Other fields on which the refusal is based. While such a field is invalid, the refusal may be wrong."""
    allowed: str = ""
    """Valid values, in the agent's words. Empty if kubelet's message already contains them."""
    plain: str = ""
    """Complete text in the agent's words, for errors where kubelet's text describes kubelet itself. Empty means that kubelet's text is
    used.
    """

    @property
    def text(self) -> str:
        """Return a text for people with the problem and the valid values."""
        return self.plain or ", ".join(filter(None, (self.message, self.allowed)))


def wrap_unexpected(error: str) -> Refusal:
    """Return a refusal with kubelet's reason for unexpected errors. The error has no reason of its own."""
    return Refusal(Reason.UNEXPECTED_ADMISSION, f"Allocate failed due to {error}, which is unexpected")
