"""Refusals of pods, of resizes, and of the agent's start, as values. Where kubelet has the same refusal, reason and text are kubelet's."""

import enum

from msgspec import Struct


class Reason(enum.StrEnum):
    """Reason for refusing a pod, as it appears in the pod's status."""

    TOPOLOGY_AFFINITY = "TopologyAffinityError"
    UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
    SMT_ALIGNMENT = "SMTAlignmentError"
    EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
    CORE_CLASS = "CoreClassUnavailable"
    """Reason for refusing a pod that requires a core class, if the node has no suitable CPUs of that class. kubelet lacks this reason."""
    DEVICE = "DeviceUnavailable"
    """Reason for refusing a pod that asks to be near a device, if the node lacks the device. kubelet lacks this reason."""
    CLAIM = "ResourceClaimUnavailable"
    """Reason for refusing a pod whose resource claims can't be satisfied. kubelet lacks this reason."""
    CPU_PLUGIN_FAILED = "CPUPluginFailed"
    """Reason for refusing a pod because a CPU plugin gave no answer or an invalid answer. kubelet lacks this reason."""
    CPU_PLUGIN_REFUSED = "CPUPluginRefused"
    """Reason for refusing a pod because a CPU plugin rejected the CPUs that were chosen for it (Allocate). kubelet lacks this reason."""
    DEVICE_PLUGINS_SLOW = "DevicePluginsSlow"
    """Reason for refusing a pod for now, because a device plugin didn't answer in time. The agent's next turn decides on the pod again.
    kubelet lacks this reason.
    """


STATE_NOT_SAVED = "StateNotSaved"
"""Reason for refusing pods while the agent can't save its state. kubelet lacks this reason, because it continues without saving."""
RELEASED = "Released"
"""Reason why a pod stays ended although its manifest exists: a user has ended it with `nodeagent release` (D7)."""
WAITS_FOR_ROOM = "WaitingForRoom"
"""Reason why a queued job waits: other pods hold the resources that it needs. kubelet lacks this reason."""
WAITS_FOR_JOBS = "WaitingForJobs"
"""Reason why a queued job waits: other waiting jobs precede it in the queue. kubelet lacks this reason."""
WAITS_FOR_RESERVATION = "WaitingForReservation"
"""Reason why a queued job waits: it needs resources that are reserved for others, or its own reservation hasn't begun or is used up.
kubelet lacks this reason.
"""
NEEDED_LATER = "needs when it begins"
"""End of the message to a job that waits because its resources are reserved from a later time on. Such a job may start at once if it ends
before that time.
"""
OF_QUEUE = (WAITS_FOR_ROOM, WAITS_FOR_JOBS, WAITS_FOR_RESERVATION)
RESERVATION_OVER = "ReservationOver"
"""Reason for refusing a job whose reservation has ended or was cancelled. kubelet lacks this reason."""
UNIT_TAKEN = "UnitTaken"
"""Reason for refusing a pod that pins a systemd unit which another pod already pins. kubelet lacks this reason."""

INVALID_ANNOTATIONS = "InvalidAnnotations"
"""Reason for refusing a container of a container runtime, because its pod's annotations are invalid or contradict kubelet's data."""
POD_NOT_KNOWN = "PodNotKnown"
"""Reason for refusing a container of a container runtime, because the managers allocate per pod, and the agent doesn't know all containers
of the pod.
"""
UID_TAKEN = "UIDTaken"
"""Reason for refusing a container of a container runtime, because another pod of the agent has the UID of the container's pod."""
INVALID_NAME = "InvalidName"
"""Reason for refusing a container of a container runtime, because its pod has a name that Kubernetes forbids. If such a name were saved,
the state couldn't be read any more.
"""
RESIZE_INFEASIBLE = "ResizeInfeasible"
"""Reason for refusing a resize that the node can't perform at all, or not without restarting containers. For a container runtime, this
applies to every resize that would change exclusive CPUs or pinned memory, because kubelet's static policies don't permit such changes
either.
"""
RESIZE_DEFERRED = "ResizeDeferred"
"""Reason for deferring a resize, because other pods hold the needed resources. The agent decides again when resources are released."""
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
        """Whether the agent will decide on the resize again, because other pods may release the needed resources."""
        return self.reason == RESIZE_DEFERRED


def refuse_resize_for_good(message: str) -> NotResized:
    """Return the refusal of a resize that can't succeed as long as the pod runs."""
    return NotResized(RESIZE_INFEASIBLE, message)


def defer_resize(message: str) -> NotResized:
    """Return the refusal of a resize that may succeed later, when other pods have released resources."""
    return NotResized(RESIZE_DEFERRED, message)


class StartRefused(Struct, frozen=True):
    """Refusal to start the agent, because configuration, machine and saved state don't fit together. An agent that hasn't started manages
    no pods.
    """

    message: str
    about: str
    """Configuration field or file that the user has to correct."""
    entry: str | int | None = None
    """Key or index of the invalid entry in the configuration field. None means the whole field."""
    rests_on: tuple[str, ...] = ()
    """Other configuration fields on which this refusal depends. If one of them is invalid, the refusal may be wrong, so it isn't
    reported.
    """
    allowed: str = ""
    """Valid values of the field, in nodeagent's words. Empty means that kubelet's message already names them."""
    plain: str = ""
    """Complete text in nodeagent's words, for errors whose message from kubelet would confuse users. Empty means that kubelet's message is
    used.
    """

    @property
    def text(self) -> str:
        """Return the text for users: the error, and the valid values."""
        return self.plain or ", ".join(filter(None, (self.message, self.allowed)))


def wrap_unexpected(error: str) -> Refusal:
    """Return a refusal with kubelet's reason UnexpectedAdmissionError, for an error for which kubelet has no specific reason."""
    return Refusal(Reason.UNEXPECTED_ADMISSION, f"Allocate failed due to {error}, which is unexpected")
