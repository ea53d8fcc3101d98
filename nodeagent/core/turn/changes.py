"""Whether a pod's changed manifest could be followed: tried out, keeping only the answer (D7). Counts nothing."""

from msgspec import Struct

from nodeagent.core.admission.managers import Managers, Rejected, admit, remove_pod
from nodeagent.core.admission.node_capacity import Allocatable, Insufficient, Usage, insufficient
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises


class Occupancy(Struct, frozen=True):
    """What is promised on a node, and what the pods that hold it have asked for."""

    promises: Promises
    pods: tuple[Pod, ...]
    usage: Usage


def exchanged(
    before: Occupancy, new: Pod, managers: Managers, allocatable: Allocatable | None
) -> Occupancy | Insufficient | Rejected:
    """Replace the pods that have a pod's name or its UID with it.

    Args:
        before: what the pods hold now.
        new: the pod that comes when they have gone.
        managers: of the node.
        allocatable: None: the node's capacity is not checked before the managers decide.

    Returns:
        What the pods hold after that, or why it is refused.
    """
    gate = managers.placement.gate("PodLevelResources")
    promises, usage = before.promises, before.usage
    left = tuple(pod for pod in before.pods if pod.uid != new.uid and pod.full_name != new.full_name)
    for pod in before.pods:
        if pod.uid != new.uid and pod.full_name != new.full_name:
            continue
        promises, _ = remove_pod(managers, promises, pod.uid)
        usage = usage.minus(pod, pod_level_resources=gate)
    if allocatable is not None:
        there = managers.with_amounts(allocatable, promises)
        short = insufficient(new, usage, there, pod_level_resources=gate)
        if short is not None:
            return short
    decision = admit(managers.tried_out(), promises, new)
    if isinstance(decision, Rejected):
        return decision
    return Occupancy(decision.promises, (*left, new), usage.plus(new, pod_level_resources=gate))
