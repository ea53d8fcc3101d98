"""A change that would admit a refused pod, and the trial decisions by which such a change is found."""

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
    """Other requested amounts in the manifest."""
    CLAIM = "claim"
    """Fewer devices for a request in a claim."""
    NODE = "node"
    """Another required NUMA node, or none."""
    CORE_CLASS = "core class"
    """Another required class of cores, or a preferred class instead of a required one."""
    DEVICES = "devices"
    """Fewer devices in the pod's `near` annotations."""
    CONFIGURATION = "configuration"
    REMOVAL = "removal"
    """End of other pods, so that there is room for the refused pod."""


class Amount(Struct, frozen=True):
    """Changed amount of one resource, with the old and the new value as written in a manifest."""

    container: str | None
    """Name of the container whose amount changes. None means that the amount is pod-level."""
    resource: str
    before: str
    after: str


class Remedy(Struct, frozen=True):
    """One change that would admit the refused pod."""

    change: RequestChange
    subject: tuple[str, ...]
    """What is changed. REQUEST: names of containers, empty for pod-level amounts. CLAIM: the claim's name in the pod, and the request.
    CONFIGURATION: the field. REMOVAL: names of pods. DEVICES: devices to remove from `near`. Empty for other kinds.
    """
    amounts: tuple[Amount, ...] = ()
    """Changed amounts. REQUEST: at least one amount per container. CLAIM: the CPU request of the container that uses the claim, if the
    claim is for CPUs.
    """
    before: str = ""
    after: str = ""
    """New value, where `before` is the present value. CONFIGURATION: the field's value, or empty if an option is removed. NODE: the
    required NUMA node, or empty for none. CLAIM: the number of devices. CORE_CLASS: the required class, or empty if it is only preferred.
    """


class Attempts:
    """Trial decisions on one refused pod, for one kind of change. Their number is limited."""

    def __init__(
        self, what_if: WhatIf, pod: Pod, refusal: Rejected | Insufficient, tried: Callable[[], None], budget: int
    ) -> None:
        self.what_if = what_if
        self.given = pod
        self.pod = pod
        """Pod to which changes are applied. Its amounts are the original ones, rounded to amounts that can be allocated."""
        self.refusal = refusal
        self.tried = tried
        self.left = budget
        self.cut_short = False
        """Whether the maximum number of trial decisions was reached before all changes were tried."""

    def admits(self, pod: Pod | None = None, what_if: WhatIf | None = None) -> bool:
        """Return whether a trial decision admits the pod. Once the maximum number of trials is reached, the result is always false."""
        if pod is not None and not is_within_budget(pod):
            return False
        if self.left <= 0:
            self.cut_short = True
            return False
        self.left -= 1
        decision = (what_if or self.what_if).judge(pod or self.pod)
        self.tried()
        return isinstance(decision, Admitted)
