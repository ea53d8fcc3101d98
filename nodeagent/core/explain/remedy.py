"""A change with which a refused pod is admitted, and the counted trials of a search."""

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
    """Another NUMA node than the required one, or any."""
    CORE_CLASS = "core class"
    """Another class of cores than the required one, or a preference instead."""
    DEVICES = "devices"
    """Removal of devices from those that the pod asks to be near."""
    CONFIGURATION = "configuration"
    REMOVAL = "removal"
    """Other pods end first."""


class Amount(Struct, frozen=True):
    """Another amount, as written in a manifest."""

    container: str | None
    """None means pod-level."""
    resource: str
    before: str
    after: str


class Remedy(Struct, frozen=True):
    """One change with which the pod is admitted."""

    change: RequestChange
    subject: tuple[str, ...]
    """REQUEST: names of the containers, empty for pod-level amounts. CLAIM: the pod's name of the claim, and the request. DEVICES: devices
    of `near`. CONFIGURATION: the field. REMOVAL: names of the pods. Otherwise empty.
    """
    amounts: tuple[Amount, ...] = ()
    """REQUEST: at least one for each container. CLAIM: CPUs of the container that has the claimed ones."""
    before: str = ""
    after: str = ""
    """CONFIGURATION: current and possible value of the field, where empty means without the option. NODE: NUMA nodes, where empty means
    any. CLAIM: numbers of devices. CORE_CLASS: classes, where empty means only preferred.
    """


class Attempts:
    """Counted trials for one pod, in the search for one kind of change."""

    def __init__(
        self, what_if: WhatIf, pod: Pod, refusal: Rejected | Insufficient, tried: Callable[[], None], budget: int
    ) -> None:
        self.what_if = what_if
        self.pod = pod
        self.refusal = refusal
        self.tried = tried
        self.left = budget
        self.cut_short = False
        """Whether the budget was too small to try everything."""

    def admits(self, pod: Pod | None = None, what_if: WhatIf | None = None) -> bool:
        """Tell whether the core admits the pod. False if the budget is used up."""
        if pod is not None and not is_within_budget(pod):
            return False
        if self.left <= 0:
            self.cut_short = True
            return False
        self.left -= 1
        decision = (what_if or self.what_if).judge(pod or self.pod)
        self.tried()
        return isinstance(decision, Admitted)
