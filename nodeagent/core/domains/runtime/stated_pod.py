"""Description of a pod by its annotations and by kubelet, for everything that NRI doesn't report. The names and notation of annotations are
in formats/runtime.
"""

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.kubelet_pod import KubeletPod
from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources


class StatedContainer(Struct, frozen=True):
    name: str
    kind: ContainerKind | None = None
    """Kind of the container. None, here and in `requests` and `limits`, means that the value isn't stated."""
    requests: Resources | None = None
    """All requests. A resource that is missing here and in `limits` isn't requested."""
    limits: Resources | None = None
    """All limits."""
    exclusive_cpus: int | None = None
    interrupts: tuple[str, ...] = ()
    near: tuple[str, ...] | None = None
    devices: tuple[tuple[str, int], ...] = ()
    """Requested devices of the agent, by resource."""
    is_kubelets: bool = False
    """Whether kind and amounts come from kubelet."""


class StatedPod(Struct, frozen=True):
    containers: tuple[StatedContainer, ...] = ()
    """The pod's order (init containers and sidecars first) if all containers are named, otherwise sorted by name."""
    names_all: bool = False
    """Whether `containers` lists all containers of the pod."""
    is_isolated: bool = False
    numa_node: int | None = None
    core_class: str | None = None
    preferred_core_class: str | None = None
    near: tuple[str, ...] = ()
    """Devices to be near, for containers that don't name their own."""
    resources: ResourceRequirements | None = None
    """Pod-level resources. None means that there are none, or that they aren't stated."""
    overhead: Resources = Resources()
    is_kubelets: bool = False
    """Whether the list of containers comes from kubelet."""

    def container(self, name: str) -> StatedContainer:
        return next((stated for stated in self.containers if stated.name == name), StatedContainer(name))


def add_kubelet_data(stated: StatedPod, pod: KubeletPod | None) -> StatedPod:
    """Replace the annotations' values by kubelet's, as far as kubelet has data, because the scheduler counts kubelet's amounts.

    Annotations are a copy of these amounts. Annotations for which kubelet has no field stay.

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
