"""A node for trial decisions, with its real pods and configuration, or with hypothetical ones.

A trial takes the same steps as a turn of the agent (core/turn/step.py), but its result isn't saved or applied.
"""

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from nodeagent.core.admission.managers import (
    Admitted,
    Managers,
    Rejected,
    Report,
    admit,
    build,
    remove_pod,
    resume,
)
from nodeagent.core.admission.node_capacity import Allocatable, Insufficient, Usage, insufficient, usage_of
from nodeagent.core.admission.node_rules import container_reports
from nodeagent.core.admission.resize import resized
from nodeagent.core.admission.units import UnitTaken, find_taken_unit
from nodeagent.core.model.config import Placement
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import NotResized, StartRefused
from nodeagent.core.model.state import NodeState, Origin, UnitKey, list_unit_keys

Refused = Rejected | Insufficient | UnitTaken


class WhatIf(Struct, frozen=True):
    """Managers, allocations and pods of a node for trial decisions."""

    managers: Managers
    promises: Promises
    pods: tuple[Pod, ...] = ()
    """Active pods, in the order in which the agent decided on them."""
    allocatable: Allocatable | None = None
    """Allocatable amounts of the node. None means that trials skip the check of the node's capacity."""
    usage: Usage = field(default_factory=Usage)
    """Sum of the requests of the active pods."""
    idle: tuple[Pod, ...] = ()
    """Idle pods, which have no allocation, but still pin their units."""
    origins: Mapping[str, Origin] = {}
    """Origins of pods by UID. A pod that isn't listed comes from a manifest."""
    moving: frozenset[str] = frozenset()
    """UIDs of pods that are ending, or that are being replaced in the same step. Other pods may pin the units of these pods."""

    @classmethod
    def of(
        cls,
        managers: Managers,
        promises: Promises,
        pods: tuple[Pod, ...] = (),
        allocatable: Allocatable | None = None,
        idle: tuple[Pod, ...] = (),
    ) -> "WhatIf":
        """Build a node with these pods, and sum up their requests."""
        gate = managers.placement.gate("PodLevelResources")
        return cls(managers, promises, pods, allocatable, usage_of(pods, pod_level_resources=gate), idle)

    @classmethod
    def of_state(cls, managers: Managers, state: NodeState, allocatable: Allocatable | None = None) -> "WhatIf":
        """Build a node with the pods and allocations of a state."""
        return cls.of(managers, state.promises, state.holding_pods(), allocatable, state.idle_pods())

    def unit_keys(self, pod: Pod) -> frozenset[UnitKey]:
        """Return the units that a pod pins, as pairs of domain and unit name."""
        return list_unit_keys(pod, self.origins.get(pod.uid, Origin("")))

    @property
    def _gate(self) -> bool:
        return self.managers.placement.gate("PodLevelResources")

    def judge(self, pod: Pod, managers: Managers | None = None) -> Admitted | Refused:
        """Decide on one more pod, as the agent would.

        Args:
            pod: the pod with defaults applied.
            managers: a copy of the node's managers with an observer, for explanations. None means the node's own managers.
        """
        others = (other for other in (*self.pods, *self.idle) if other.uid not in self.moving)
        taken = find_taken_unit(self.unit_keys(pod), ((other.full_name, self.unit_keys(other)) for other in others))
        if taken is not None:
            return taken
        if self.allocatable is not None:
            capacity = self.managers.with_amounts(self.allocatable, self.promises)
            shortage = insufficient(pod, self.usage, capacity, pod_level_resources=self._gate)
            if shortage is not None:
                return shortage
        return admit(managers or self.managers, self.promises, pod)

    def resize(self, old: Pod, new: Pod) -> "Fits | NotResized":
        """Decide on the resize of a running pod, as the agent would.

        Args:
            old: the pod as it runs. It may lack its environment variables.
            new: the pod with changed amounts (see `is_resize`).
        """
        answer = resized(self.managers, self.promises, old, new, usage=self.usage, allocatable=self.allocatable)
        if isinstance(answer, NotResized):
            return answer
        usage = self.usage.minus(old, pod_level_resources=self._gate).plus(new, pod_level_resources=self._gate)
        pods = tuple(new if pod.uid == old.uid else pod for pod in self.pods)
        return Fits(replace(self, promises=answer, pods=pods, usage=usage), self)

    def as_admitted(self, pod: Pod) -> Admitted:
        """Return the present allocation of an admitted pod, in the form of a decision."""
        return Admitted(self.promises, (), Report((), container_reports(self.managers, self.promises, pod)))

    def after(self, pod: Pod, decision: Admitted | Refused) -> "WhatIf":
        """Return the node as it is after this decision on the pod."""
        match decision:
            case Admitted():
                usage = self.usage.plus(pod, pod_level_resources=self._gate)
                return replace(self, promises=decision.promises, pods=(*self.pods, pod), usage=usage)
            case Rejected():
                return replace(self, promises=decision.promises)
            case Insufficient() | UnitTaken():
                return self

    def without(self, uids: frozenset[str]) -> "WhatIf":
        """Return the node as it is after these pods have ended."""
        promises, usage = self.promises, self.usage
        for uid in sorted(uids):
            promises, _ = remove_pod(self.managers, promises, uid)
        for pod in self.pods:
            if pod.uid in uids:
                usage = usage.minus(pod, pod_level_resources=self._gate)
        left, idle = (tuple(pod for pod in pods if pod.uid not in uids) for pods in (self.pods, self.idle))
        return replace(self, promises=promises, pods=left, usage=usage, idle=idle)

    def making_way(self, pod: Pod) -> "WhatIf":
        """Return the node without the pods that this pod would replace. The agent ends a pod when its manifest changes, before it decides
        on the new pod of the same name.
        """
        keys = keys_of(pod)
        replaced = (old.uid for old in (*self.pods, *self.idle) if not keys.isdisjoint(keys_of(old)))
        return self.without(frozenset(replaced))

    def under(self, placement: Placement) -> "WhatIf | StartRefused":
        """Return the node with another configuration and the same allocations. If the allocations don't fit the configuration, return the
        refusal.
        """
        managers = build(self.managers.topology, placement)
        if isinstance(managers, StartRefused):
            return managers
        managers = managers.knowing(self.managers.providers.devices, self.managers.plugged)
        promises = resume(managers, self.promises)
        if isinstance(promises, StartRefused):
            return promises
        return replace(self, managers=managers, promises=promises)


class Fits(Struct, frozen=True):
    """Result of a resize that is possible, for trial decisions."""

    node: WhatIf
    """Node as it is after the resize."""
    before: WhatIf


def keys_of(pod: Pod) -> frozenset[tuple[str, str]]:
    """Return the keys of a pod that must be unique on a node: its UID, and its namespace with its name. A new pod replaces any pod that has
    one of its keys.
    """
    return frozenset((("name", pod.full_name), ("uid", pod.uid)))
