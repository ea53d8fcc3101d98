"""Free resources of each NUMA node, which show why a pod doesn't fit and how fragmented the node is."""

from collections.abc import Iterable
from typing import TypeVar

from msgspec import Struct

from nodeagent.core.admission.managers import Managers
from nodeagent.core.model.demand import PodDemand
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.explainer import list_explainers

H = TypeVar("H", bound=Struct)


class NodeHeadroom(Struct, frozen=True):
    """Free resources of one NUMA node."""

    id: int
    parts: tuple[Struct, ...]
    """Free amounts of each resource. Each resource has its own type for them."""

    def of(self, kind: type[H]) -> H:
        """Return the free amounts that have this type."""
        for part in self.parts:
            if isinstance(part, kind):
                return part
        raise AssertionError("the NUMA node lacks the free amounts of a resource that every node has")


def headroom(
    managers: Managers, promises: Promises, pods: Iterable[Pod], asking: PodDemand | None = None
) -> tuple[NodeHeadroom, ...]:
    """Return the free resources of every NUMA node, including nodes without CPUs.

    Args:
        managers: the node's managers.
        promises: the current promises.
        pods: the active pods, whose names appear in the result.
        asking: the pod for which the resources are free, which may reuse those of its init containers. None means any pod.
    """
    names = {pod.uid: pod.full_name for pod in pods}
    nodes = [node.id for node in managers.topology.numa]
    explainers = list_explainers(managers.providers.resources)
    found = [parts for each in explainers if (parts := each.find_headroom(promises, nodes, names, asking))]
    return tuple(NodeHeadroom(node, tuple(parts)) for node, *parts in zip(nodes, *found, strict=True))
