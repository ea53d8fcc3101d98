"""Refusals of pods and of starts, as values. Reasons and texts are the same as kubelet's, if kubelet has such a refusal."""

import enum

from msgspec import Struct


class Reason(enum.StrEnum):
    """Reason for refusing a pod, as in the pod's status."""

    TOPOLOGY_AFFINITY = "TopologyAffinityError"
    UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
    SMT_ALIGNMENT = "SMTAlignmentError"
    EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
    CORE_CLASS = "CoreClassUnavailable"
    """Reason of a pod that requires a core class of which the node has no suitable CPUs. kubelet doesn't have this reason."""
    DEVICE = "DeviceUnavailable"
    """Reason of a pod that asks to be near a device which the node lacks. kubelet doesn't have this reason."""
    CLAIM = "ResourceClaimUnavailable"
    """Reason of a pod whose resource claims can't be satisfied. kubelet doesn't have this reason."""
    CPU_PLUGIN_FAILED = "CPUPluginFailed"
    """Reason of a pod about which a CPU plugin gave no answer or an invalid answer. kubelet doesn't have this reason."""
    CPU_PLUGIN_REFUSED = "CPUPluginRefused"
    """Reason of a pod whose chosen CPUs were rejected by a CPU plugin's Allocate. kubelet doesn't have this reason."""
    DEVICE_PLUGINS_SLOW = "DevicePluginsSlow"
    """Reason of a pod for which device plugins didn't answer within the waiting time of a turn. The next turn decides on the pod again.
    kubelet doesn't have this reason.
    """


STATE_NOT_SAVED = "StateNotSaved"
"""Reason of pods that are refused while the state can't be saved. kubelet doesn't have this reason, because it continues without saving."""
RELEASED = "Released"
"""Reason of a pod that a user has ended and that stays ended although its manifest still exists (D7)."""
WAITS_FOR_ROOM = "WaitingForRoom"
"""Reason of a queued job that waits for resources of other pods. kubelet doesn't have this reason."""
WAITS_FOR_JOBS = "WaitingForJobs"
"""Reason of a job behind other waiting jobs in the queue. Those jobs are decided first. kubelet doesn't have this reason."""
WAITS_FOR_RESERVATION = "WaitingForReservation"
"""Reason of a job that a reservation prevents from starting. The job needs resources reserved for others, or its own reservation hasn't
begun or is used up. kubelet doesn't have this reason.
"""
NEEDED_LATER = "needs when it begins"
"""End of the message about a job that may start now if it ends before the reservation begins."""
OF_QUEUE = (WAITS_FOR_ROOM, WAITS_FOR_JOBS, WAITS_FOR_RESERVATION)
RESERVATION_OVER = "ReservationOver"
"""Reason of a job whose reservation has ended or was cancelled. kubelet doesn't have this reason."""
UNIT_TAKEN = "UnitTaken"
"""Reason of a pod that pins the same systemd unit as another pod. kubelet doesn't have this reason."""

INVALID_ANNOTATIONS = "InvalidAnnotations"
"""Reason of a runtime's container whose pod has annotations that are invalid or contradict kubelet's data."""
POD_NOT_KNOWN = "PodNotKnown"
"""Reason of a runtime's container if the managers align whole pods, but the agent doesn't know the whole pod."""
UID_TAKEN = "UIDTaken"
"""Reason of a runtime's container whose pod has the UID of another pod of the agent."""
INVALID_NAME = "InvalidName"
"""Reason of a runtime's container whose pod has a name that Kubernetes doesn't allow. Such a pod isn't saved, because the saved state
would be unreadable.
"""
RESIZE_INFEASIBLE = "ResizeInfeasible"
"""Reason of a resize that this node can't perform, or only by a restart. For a runtime's container, the resize would change exclusive
CPUs or pinned memory, which kubelet's static policies don't allow either.
"""
RESIZE_DEFERRED = "ResizeDeferred"
"""Reason of a resize that waits because other pods hold the needed resources. The resize is decided again when resources are released."""
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
    """Refusal to start, because configuration, machine and saved state don't match. The agent then manages nothing."""

    message: str
    about: str
    """Configuration field or file that the user has to check."""
    entry: str | int | None = None
    """Entry of the field, by key or index. None means that the whole field is concerned."""
    rests_on: tuple[str, ...] = ()
    """Other fields on which this refusal depends. While one of them is invalid, the refusal may be wrong."""
    allowed: str = ""
    """Valid values, in the agent's words. The text is empty if kubelet's message already names them."""
    plain: str = ""
    """Complete text in the agent's words, for errors where kubelet's text would describe kubelet itself. If it is empty, kubelet's text
    is used.
    """

    @property
    def text(self) -> str:
        """Return a text for users, with the problem and the valid values."""
        return self.plain or ", ".join(filter(None, (self.message, self.allowed)))


def wrap_unexpected(error: str) -> Refusal:
    """Return a refusal with kubelet's reason for unexpected errors, because the error has no reason of its own."""
    return Refusal(Reason.UNEXPECTED_ADMISSION, f"Allocate failed due to {error}, which is unexpected")
