"""Refusals as values: of a pod, and of a start. Reasons and texts are kubelet's, where it has them."""

import enum

from msgspec import Struct


class Reason(enum.StrEnum):
    """Why a pod is refused: the pod's status reason."""

    TOPOLOGY_AFFINITY = "TopologyAffinityError"
    UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
    SMT_ALIGNMENT = "SMTAlignmentError"
    EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
    CORE_CLASS = "CoreClassUnavailable"
    """Of the class of cores that it asks for, nothing can be promised to it. The agent's own reason."""
    DEVICE = "DeviceUnavailable"
    """The node has no device as the one that it asks to be near. The agent's own reason."""
    CLAIM = "ResourceClaimUnavailable"
    """Its resource claims can't be met. The agent's own reason."""
    CPU_PLUGIN_FAILED = "CPUPluginFailed"
    """A CPU plugin has no answer about it, or none that can be. The agent's own reason."""
    CPU_PLUGIN_REFUSED = "CPUPluginRefused"
    """A CPU plugin's Allocate doesn't let it have the CPUs that were chosen. The agent's own reason."""
    DEVICE_PLUGINS_SLOW = "DevicePluginsSlow"
    """Device plugins have used up the time that a turn waits for them. The next turn decides again. The agent's own reason."""


STATE_NOT_SAVED = "StateNotSaved"
"""Why a pod is refused while decisions can't be made durable: the agent's own reason; kubelet continues."""
RELEASED = "Released"
"""Why a pod does not run although its manifest is there: it was ended by hand, and stays ended like a refused pod (D7)."""
UNIT_TAKEN = "UnitTaken"
"""Why a pod is refused that stands for a systemd unit: another one does. The agent's own reason."""

INVALID_ANNOTATIONS = "InvalidAnnotations"
"""Why a container runtime's container is refused: its pod's annotations say what can't be, or not what kubelet has told the runtime."""
POD_NOT_KNOWN = "PodNotKnown"
"""Why it is refused where pods are aligned as a whole: not all is known of its pod."""
UID_TAKEN = "UIDTaken"
"""Why it is refused: its pod has the UID of one that is not the runtime's."""
INVALID_NAME = "InvalidName"
"""Why it is refused: its pod has a name that no pod of Kubernetes' has. It is no part of the state, which could not be read again."""
RESIZE_INFEASIBLE = "ResizeInfeasible"
"""Why a pod that runs can't have other amounts: never on this node, or not without being made anew. Of a container of a runtime's: it would
have other exclusive CPUs, or other memory, than those it was promised; kubelet's static policies refuse that, too.
"""
RESIZE_DEFERRED = "ResizeDeferred"
"""Why a pod that runs doesn't have other amounts yet: others hold what it would need. It is tried again in every turn."""
OF_RESIZES = (RESIZE_DEFERRED, RESIZE_INFEASIBLE)
OF_RUNTIMES = (INVALID_ANNOTATIONS, POD_NOT_KNOWN, UID_TAKEN, INVALID_NAME, RESIZE_INFEASIBLE)


class Refusal(Struct, frozen=True):
    """A pod can't be admitted."""

    reason: Reason
    message: str


class StartRefused(Struct, frozen=True):
    """The configuration, the machine and the saved state don't match; nothing is managed."""

    message: str
    about: str
    """The configuration field, or the file, that a person has to check."""
    entry: str | int | None = None
    """Which of the field's entries, by key or index; None: the field as a whole."""
    rests_on: tuple[str, ...] = ()
    """Other fields that the refusal follows from: while one of them is invalid, nothing can be concluded."""
    allowed: str = ""
    """What would be right, in our words; empty: the message says it."""
    plain: str = ""
    """The complete text in our words, where kubelet's is about its own program; empty: kubelet's text fits."""

    @property
    def text(self) -> str:
        """For people: what is wrong, and what is allowed."""
        return self.plain or ", ".join(filter(None, (self.message, self.allowed)))


def unexpected(error: str) -> Refusal:
    """Wrap an error that carries no reason of its own."""
    return Refusal(Reason.UNEXPECTED_ADMISSION, f"Allocate failed due to {error}, which is unexpected")
