"""Refusals as values: of a pod, and of a start. Reasons and texts are kubelet's."""

import enum

from msgspec import Struct


class Reason(enum.StrEnum):
    """Why a pod is refused: the pod's status reason."""

    TOPOLOGY_AFFINITY = "TopologyAffinityError"
    UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
    SMT_ALIGNMENT = "SMTAlignmentError"
    EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"


STATE_NOT_SAVED = "StateNotSaved"
"""Why a pod is refused for as long as decisions can't be made durable: the agent's own, kubelet carries on."""
RELEASED = "Released"
"""Why a pod does not run although its manifest is there: it was ended by hand, and stays so as a refused one does (D7)."""


class Refusal(Struct, frozen=True):
    """A pod can't be admitted."""

    reason: Reason
    message: str


class StartRefused(Struct, frozen=True):
    """The configuration, the machine and the state found don't go together; nothing is managed."""

    message: str
    about: str
    """The configuration's field, or the file, that a person has to look at."""
    entry: str | int | None = None
    """Which of the field's entries, by key or index; None: the field as a whole."""
    rests_on: tuple[str, ...] = ()
    """Other fields that it follows from: while one of these is no value at all, nothing is known."""
    allowed: str = ""
    """What would be right, in our words; empty: the message says it."""
    plain: str = ""
    """All of it in our words, where kubelet's are about its own program; empty: kubelet's do."""

    @property
    def told(self) -> str:
        """For people: what is wrong, and what is allowed."""
        return self.plain or ", ".join(filter(None, (self.message, self.allowed)))


def unexpected(error: str) -> Refusal:
    """Wrap an error that carries no reason of its own."""
    return Refusal(Reason.UNEXPECTED_ADMISSION, f"Allocate failed due to {error}, which is unexpected")
