"""Data about a pod that NRI lacks, from the pod's annotations and from kubelet's pods API. formats/runtime defines the notation of the
annotations.
"""

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.kubelet_pod import KubeletPod
from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources


class StatedContainer(Struct, frozen=True):
    name: str
    kind: ContainerKind | None = None
    """Kind of the container. None means that neither an annotation nor kubelet states it."""
    requests: Resources | None = None
    """Complete list of requests. None means that neither annotations nor kubelet state them. If a resource is missing in the list, its
    limit is also its request.
    """
    limits: Resources | None = None
    """Complete list of limits. None means that neither annotations nor kubelet state them."""
    exclusive_cpus: int | None = None
    interrupts: tuple[str, ...] = ()
    near: tuple[str, ...] | None = None
    devices: tuple[tuple[str, int], ...] = ()
    """Numbers of devices that the agent should allocate, by extended resource."""
    is_kubelets: bool = False
    """Whether kubelet's pods API is the source of the kind and the amounts."""


class StatedPod(Struct, frozen=True):
    containers: tuple[StatedContainer, ...] = ()
    """Containers in the pod's order, init containers and sidecars first. If `names_all` is False, they are sorted by name."""
    names_all: bool = False
    """Whether `containers` is the complete list of the pod's containers."""
    is_isolated: bool = False
    numa_node: int | None = None
    core_class: str | None = None
    preferred_core_class: str | None = None
    near: tuple[str, ...] = ()
    """Devices near which the pod's containers should be placed, unless a container names other devices."""
    resources: ResourceRequirements | None = None
    """Resources of the pod as a whole (`spec.resources`). None means that there are none, or that kubelet hasn't reported them."""
    overhead: Resources = Resources()
    is_kubelets: bool = False
    """Whether kubelet's pods API is the source of the list of containers."""

    def container(self, name: str) -> StatedContainer:
        return next((stated for stated in self.containers if stated.name == name), StatedContainer(name))


def add_kubelet_data(stated: StatedPod, pod: KubeletPod | None) -> StatedPod:
    """Replace the data from annotations by kubelet's data, where kubelet has reported any. kubelet's amounts take precedence, because the
    scheduler counts them.

    Annotations for which kubelet has no counterpart, such as `near`, stay in effect.

    Args:
        stated: the pod as its annotations describe it.
        pod: the pod as kubelet's pods API reports it. None means that there is no report.
    """
    if pod is None:
        return stated
    containers = tuple(
        replace(
            stated.container(one.name),
            kind=one.kind,
            requests=one.resources.requests,
            limits=one.resources.limits,
            is_kubelets=True,
        )
        for one in pod.containers
    )
    return replace(
        stated, containers=containers, names_all=True, resources=pod.resources, overhead=pod.overhead, is_kubelets=True
    )
