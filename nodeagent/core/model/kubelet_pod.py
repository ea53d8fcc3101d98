"""A pod as kubelet knows it, with data that NRI lacks: all containers with their kinds, requests and limits."""

from msgspec import Struct

from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources


class KubeletContainer(Struct, frozen=True):
    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: ResourceRequirements = ResourceRequirements()
    """Requests and limits as written. Missing requests haven't been replaced by limits yet."""


class KubeletPod(Struct, frozen=True):
    uid: str
    containers: tuple[KubeletContainer, ...] = ()
    """All containers in the pod's order, with init containers and sidecars before the others. Containers that were added to the running
    pod come last.
    """
    resources: ResourceRequirements | None = None
    """Pod-level `spec.resources`."""
    overhead: Resources = Resources()
