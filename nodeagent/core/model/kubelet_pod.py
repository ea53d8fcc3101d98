"""Pod as known to kubelet, with data that NRI lacks: all containers with their kinds, requests and limits."""

from msgspec import Struct

from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources


class KubeletContainer(Struct, frozen=True):
    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: ResourceRequirements = ResourceRequirements()
    """Requests and limits as written. Missing requests have not been replaced by limits yet."""


class KubeletPod(Struct, frozen=True):
    uid: str
    containers: tuple[KubeletContainer, ...] = ()
    """All containers: first the init containers and sidecars, then the others, in the pod's order. Containers that were added to the
    running pod come last.
    """
    resources: ResourceRequirements | None = None
    """Pod-level `spec.resources`."""
    overhead: Resources = Resources()
