"""Data about a pod that NRI doesn't report. It comes from the pod's annotations and from kubelet. The names and notation of annotations
are in formats/runtime.
"""

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.kubelet_pod import KubeletPod
from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources


class StatedContainer(Struct, frozen=True):
    name: str
    kind: ContainerKind | None = None
    """Kind of the container. None means that the kind isn't stated. The same holds for `requests` and `limits`."""
    requests: Resources | None = None
    """All requests. A resource that is neither in `requests` nor in `limits` isn't requested."""
    limits: Resources | None = None
    """All limits."""
    exclusive_cpus: int | None = None
    interrupts: tuple[str, ...] = ()
    near: tuple[str, ...] | None = None
    devices: tuple[tuple[str, int], ...] = ()
    """Numbers of requested devices that the agent allocates, by resource."""
    is_kubelets: bool = False
    """Whether the kind and the amounts come from kubelet."""


class StatedPod(Struct, frozen=True):
    containers: tuple[StatedContainer, ...] = ()
    """Containers in the pod's order (init containers and sidecars first) if all are named, otherwise sorted by name."""
    names_all: bool = False
    """Whether `containers` lists all containers of the pod."""
    is_isolated: bool = False
    numa_node: int | None = None
    core_class: str | None = None
    preferred_core_class: str | None = None
    near: tuple[str, ...] = ()
    """Devices that containers ask to be near if they don't name other devices."""
    resources: ResourceRequirements | None = None
    """Pod-level resources. None means that the pod has none, or that they aren't stated."""
    overhead: Resources = Resources()
    is_kubelets: bool = False
    """Whether the list of containers comes from kubelet."""

    def container(self, name: str) -> StatedContainer:
        return next((stated for stated in self.containers if stated.name == name), StatedContainer(name))


def add_kubelet_data(stated: StatedPod, pod: KubeletPod | None) -> StatedPod:
    """Replace the annotations' values by kubelet's values where kubelet has reported them. The scheduler counts the amounts that kubelet
    reports.

    Annotations only copy these amounts. Annotations without a counterpart in kubelet's data stay.

    Args:
        stated: the pod as described by its annotations.
        pod: kubelet's pod. None means that kubelet has reported nothing.
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
