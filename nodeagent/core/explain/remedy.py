"""A change after which a refused pod is admitted, and the attempts that show it. Knows no search."""

import enum
from collections.abc import Callable

from msgspec import Struct

from nodeagent.core.admission.managers import Admitted, Rejected
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.explain.what_if import WhatIf
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.pod_amounts import is_within_budget


class RequestChange(enum.StrEnum):
    REQUEST = "request"
    """Another amount in the manifest."""
    CLAIM = "claim"
    """Fewer devices for a request of a claim."""
    NODE = "node"
    """Another NUMA node than the one for which the pod asks, or any."""
    CORE_CLASS = "core class"
    """Another class of cores than the one for which the pod asks, or none required."""
    DEVICES = "devices"
    """Without asking to be near a device."""
    CONFIGURATION = "configuration"
    REMOVAL = "removal"
    """Other pods end first."""


class Amount(Struct, frozen=True):
    """Another amount, spelled as in a manifest."""

    container: str | None
    """None: pod-level."""
    resource: str
    before: str
    after: str


class Remedy(Struct, frozen=True):
    """One change after which the pod is admitted."""

    change: RequestChange
    subject: tuple[str, ...]
    """REQUEST: the containers' names, none for pod-level amounts; CLAIM: the pod's name of it, and its request; NODE and CORE_CLASS:
    nothing; DEVICES: what it asks to be near; CONFIGURATION: the field; REMOVAL: the pods' names.
    """
    amounts: tuple[Amount, ...] = ()
    """REQUEST: at least one for each of the containers; CLAIM: CPUs of the container that has those of the claim."""
    before: str = ""
    after: str = ""
    """CONFIGURATION: the current and the possible value of the field; empty: without the option. NODE: the same of the NUMA
    node; empty: any. CLAIM: of how many devices the request is for. CORE_CLASS: of the class; empty: it is only preferred.
    """


class Attempts:
    """Attempts for one pod, counted. Lives for the search for one kind of change."""

    def __init__(
        self, what_if: WhatIf, pod: Pod, refusal: Rejected | Insufficient, tried: Callable[[], None], budget: int
    ) -> None:
        self.what_if = what_if
        self.pod = pod
        self.refusal = refusal
        self.tried = tried
        self.left = budget
        self.cut_short = False
        """Not everything could be tried."""

    def admits(self, pod: Pod | None = None, what_if: WhatIf | None = None) -> bool:
        """Whether the core admits it; False if too much was tried already."""
        if pod is not None and not is_within_budget(pod):
            return False
        if self.left <= 0:
            self.cut_short = True
            return False
        self.left -= 1
        decision = (what_if or self.what_if).judge(pod or self.pod)
        self.tried()
        return isinstance(decision, Admitted)
