"""A change that would admit a refused pod, and the trial decisions with which the change is searched."""

import enum
from collections.abc import Callable

from msgspec import Struct

from nodeagent.core.admission.managers import Admitted, Rejected
from nodeagent.core.admission.node_capacity import Insufficient
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.pod_amounts import is_within_budget


class RequestChange(enum.StrEnum):
    REQUEST = "request"
    """Changed amounts in the manifest."""
    CLAIM = "claim"
    """Fewer devices for a request in a claim."""
    NODE = "node"
    """Another required NUMA node, or no required node."""
    CORE_CLASS = "core class"
    """Another required class of cores, or only a preference for the class."""
    DEVICES = "devices"
    """Fewer devices in `near`."""
    CONFIGURATION = "configuration"
    REMOVAL = "removal"
    """End of other pods before the pod is admitted."""


class Amount(Struct, frozen=True):
    """A changed amount, as written in a manifest."""

    container: str | None
    """Name of the container. None means that the amount is pod-level."""
    resource: str
    before: str
    after: str


class Remedy(Struct, frozen=True):
    """One change that would admit the pod."""

    change: RequestChange
    subject: tuple[str, ...]
    """Subject of the change, by kind. REQUEST: names of the containers, empty for pod-level amounts. CLAIM: the claim's name in the pod,
    and the request. CONFIGURATION: the field. REMOVAL: names of the pods. DEVICES: removed devices. Otherwise empty.
    """
    amounts: tuple[Amount, ...] = ()
    """New amounts. REQUEST: one or more amounts per container. CLAIM: the CPU request of the container that uses the claimed CPUs."""
    before: str = ""
    after: str = ""
    """New value, as opposed to the current value `before`, by kind. CONFIGURATION: the field's value, empty without the option. NODE: the
    NUMA node, empty for any. CLAIM: the number of devices. CORE_CLASS: the class, empty if it is only preferred.
    """


class Attempts:
    """Attempts to admit one pod with one kind of change. The trial decisions are counted."""

    def __init__(
        self, what_if: WhatIf, pod: Pod, refusal: Rejected | Insufficient, tried: Callable[[], None], budget: int
    ) -> None:
        self.what_if = what_if
        self.given = pod
        self.pod = pod
        """The pod from which a search starts: the given pod, with amounts that can be allocated."""
        self.refusal = refusal
        self.tried = tried
        self.left = budget
        self.cut_short = False
        """Whether the search ended because the budget was used up, before all changes were tried."""

    def admits(self, pod: Pod | None = None, what_if: WhatIf | None = None) -> bool:
        """Tell whether a trial decision admits the pod. The result is False if the budget is used up."""
        if pod is not None and not is_within_budget(pod):
            return False
        if self.left <= 0:
            self.cut_short = True
            return False
        self.left -= 1
        decision = (what_if or self.what_if).judge(pod or self.pod)
        self.tried()
        return isinstance(decision, Admitted)
