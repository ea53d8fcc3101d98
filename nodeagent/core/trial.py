"""A node to try decisions out on: what the daemon would decide about a pod, with the pods there are, or other ones, or other rules.

The same steps as a turn of the daemon takes (step.py), on values that nobody keeps.
"""

from dataclasses import dataclass, replace

from nodeagent.core.config import Placement
from nodeagent.core.managers import Admitted, Managers, Rejected, admit, build, remove_pod, resume
from nodeagent.core.node_capacity import Allocatable, Insufficient, insufficient, usage_of
from nodeagent.core.pod import Pod
from nodeagent.core.promises import Promises
from nodeagent.core.refusals import StartRefused


@dataclass(frozen=True, slots=True)
class Trial:
    """The state of a node at one moment."""

    managers: Managers
    promises: Promises
    pods: tuple[Pod, ...] = ()
    """The active ones, in the order of the decisions on them."""
    allocatable: Allocatable | None = None
    """None: the node's capacity is not checked before the managers decide."""

    def judge(self, pod: Pod, managers: Managers | None = None) -> Admitted | Rejected | Insufficient:
        """Decide on one more pod, as the daemon does.

        Args:
            pod: with defaults applied.
            managers: the node's, with observers.
        """
        if self.allocatable is not None:
            gate = self.managers.placement.gate("PodLevelResources")
            usage = usage_of(self.pods, pod_level_resources=gate)
            short = insufficient(pod, usage, self.allocatable, pod_level_resources=gate)
            if short is not None:
                return short
        return admit(managers or self.managers, self.promises, pod)

    def after(self, pod: Pod, decision: Admitted | Rejected | Insufficient) -> "Trial":
        """Give the node as it is when that was decided."""
        match decision:
            case Admitted():
                return replace(self, promises=decision.promises, pods=(*self.pods, pod))
            case Rejected():
                return replace(self, promises=decision.promises)
            case Insufficient():
                return self

    def without(self, uids: frozenset[str]) -> "Trial":
        """Give the node as it is when those pods have gone."""
        promises = self.promises
        for uid in sorted(uids):
            promises, _ = remove_pod(self.managers, promises, uid)
        return replace(self, promises=promises, pods=tuple(pod for pod in self.pods if pod.uid not in uids))

    def under(self, placement: Placement) -> "Trial | StartRefused":
        """Give the node with the same promises and another configuration, if the two go together."""
        managers = build(self.managers.topology, placement)
        if isinstance(managers, StartRefused):
            return managers
        promises = resume(managers, self.promises)
        if isinstance(promises, StartRefused):
            return promises
        return replace(self, managers=managers, promises=promises)
