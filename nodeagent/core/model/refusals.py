"""Refusals of pods and of starts, as values. Reasons and texts are kubelet's, where it has them."""

import enum

from msgspec import Struct


class Reason(enum.StrEnum):
    """Reason of a refused pod (the pod's status reason)."""

    TOPOLOGY_AFFINITY = "TopologyAffinityError"
    UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
    SMT_ALIGNMENT = "SMTAlignmentError"
    EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
    CORE_CLASS = "CoreClassUnavailable"
    """The node can't give the pod CPUs of the core class that it requires. The agent's own reason."""
    DEVICE = "DeviceUnavailable"
    """The node lacks a device that the pod asks to be near. The agent's own reason."""
    CLAIM = "ResourceClaimUnavailable"
    """The pod's resource claims can't be met. The agent's own reason."""
    CPU_PLUGIN_FAILED = "CPUPluginFailed"
    """A CPU plugin gave no answer, or an invalid one. The agent's own reason."""
    CPU_PLUGIN_REFUSED = "CPUPluginRefused"
    """A CPU plugin's Allocate rejected the chosen CPUs. The agent's own reason."""
    DEVICE_PLUGINS_SLOW = "DevicePluginsSlow"
    """Device plugins have used up the time that a turn waits for them. The next turn decides again. The agent's own reason."""


STATE_NOT_SAVED = "StateNotSaved"
"""Reason of pods refused while the state can't be saved. The agent's own reason; kubelet continues."""
RELEASED = "Released"
"""Reason of a pod that was ended by hand and stays ended although its manifest exists (D7)."""
UNIT_TAKEN = "UnitTaken"
"""Reason of a pod that pins a systemd unit which another pod pins. The agent's own reason."""

INVALID_ANNOTATIONS = "InvalidAnnotations"
"""Reason of a container of a runtime whose pod has invalid annotations, or annotations that contradict kubelet."""
POD_NOT_KNOWN = "PodNotKnown"
"""Reason of a container of a runtime if pods are aligned as a whole, and not all of its pod is known."""
UID_TAKEN = "UIDTaken"
"""Reason of a container of a runtime whose pod has the UID of another pod of the agent."""
INVALID_NAME = "InvalidName"
"""Reason of a container of a runtime whose pod has a name that Kubernetes doesn't allow. The pod isn't saved, because the state could not
be read again.
"""
RESIZE_INFEASIBLE = "ResizeInfeasible"
"""Reason of a resize that can't be done on this node, or not without a restart. A container of a runtime would get other exclusive CPUs
or other memory, which kubelet's static policies refuse as well.
"""
RESIZE_DEFERRED = "ResizeDeferred"
"""Reason of a resize that has to wait, because others have what it would need. It is decided again when there is more room."""
OF_RESIZES = (RESIZE_DEFERRED, RESIZE_INFEASIBLE)
OF_RUNTIMES = (INVALID_ANNOTATIONS, POD_NOT_KNOWN, UID_TAKEN, INVALID_NAME, RESIZE_INFEASIBLE)


class Refusal(Struct, frozen=True):
    """Refusal to admit a pod."""

    reason: Reason
    message: str


class NotResized(Struct, frozen=True):
    """Why a running pod stays as it is."""

    reason: str
    message: str

    @property
    def is_deferred(self) -> bool:
        """Whether the resize may succeed once other pods give something back."""
        return self.reason == RESIZE_DEFERRED


def refuse_resize_for_good(message: str) -> NotResized:
    """Refuse a resize that can't succeed while the pod runs."""
    return NotResized(RESIZE_INFEASIBLE, message)


def defer_resize(message: str) -> NotResized:
    """Refuse a resize that may succeed later."""
    return NotResized(RESIZE_DEFERRED, message)


class StartRefused(Struct, frozen=True):
    """Refusal to start, because configuration, machine and saved state don't match. Nothing is managed."""

    message: str
    about: str
    """Configuration field or file that a person has to check."""
    entry: str | int | None = None
    """Entry of the field, by key or index. None means the field as a whole."""
    rests_on: tuple[str, ...] = ()
    """Other fields that the refusal follows from. While one of them is invalid, the refusal may be wrong."""
    allowed: str = ""
    """Valid values, in the agent's words. Empty if the message has them."""
    plain: str = ""
    """Complete text in the agent's words, if kubelet's text is about its own program. Empty if kubelet's text fits."""

    @property
    def text(self) -> str:
        """Return a text for people with the problem and the valid values."""
        return self.plain or ", ".join(filter(None, (self.message, self.allowed)))


def wrap_unexpected(error: str) -> Refusal:
    """Wrap an error without a reason of its own."""
    return Refusal(Reason.UNEXPECTED_ADMISSION, f"Allocate failed due to {error}, which is unexpected")
