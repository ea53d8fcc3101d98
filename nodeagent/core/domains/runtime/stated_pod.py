"""What NRI doesn't tell of a pod: what it says of itself, in annotations, and what kubelet says of it. Knows no annotation's name and no
notation.
"""

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.kubelet_pod import KubeletPod
from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources


class StatedContainer(Struct, frozen=True):
    name: str
    kind: ContainerKind | None = None
    """None: not said, as with all that follows."""
    requests: Resources | None = None
    """All of them: what isn't here isn't requested, but for what only `limits` has."""
    limits: Resources | None = None
    """All of them."""
    exclusive_cpus: int | None = None
    interrupts: tuple[str, ...] = ()
    near: tuple[str, ...] | None = None
    devices: tuple[tuple[str, int], ...] = ()
    """Of its own: resources and how many of each."""
    is_kubelets: bool = False
    """Kind and amounts are what kubelet says."""


class StatedPod(Struct, frozen=True):
    containers: tuple[StatedContainer, ...] = ()
    """If it names all, in the order of the pod's: init containers and sidecars first. Otherwise sorted by name."""
    names_all: bool = False
    """There are no others."""
    is_isolated: bool = False
    numa_node: int | None = None
    core_class: str | None = None
    preferred_core_class: str | None = None
    near: tuple[str, ...] = ()
    """Of containers that don't say otherwise."""
    resources: ResourceRequirements | None = None
    """Of the pod as a whole. None: there are none, or nobody has said so."""
    overhead: Resources = Resources()
    is_kubelets: bool = False
    """The list of containers is kubelet's."""

    def container(self, name: str) -> StatedContainer:
        return next((stated for stated in self.containers if stated.name == name), StatedContainer(name))


def with_kubelets(stated: StatedPod, pod: KubeletPod | None) -> StatedPod:
    """Put what kubelet says in the place of what annotations say of the same: they are somebody's copy of it, and the scheduler has counted
    what kubelet has. What only annotations can say stays.

    Args:
        stated: by annotations.
        pod: kubelet's. None: it hasn't said anything.
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
