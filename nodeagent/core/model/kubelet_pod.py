"""Pod as known to kubelet, with the data that NRI lacks: all containers and their kinds, requests and limits."""

from msgspec import Struct

from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources


class KubeletContainer(Struct, frozen=True):
    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: ResourceRequirements = ResourceRequirements()
    """Requests and limits as written. Missing requests are not yet replaced by limits."""


class KubeletPod(Struct, frozen=True):
    uid: str
    containers: tuple[KubeletContainer, ...] = ()
    """All containers: init containers and sidecars first, then the others, in the pod's order. Containers added to the running pod are
    last.
    """
    resources: ResourceRequirements | None = None
    """Pod-level `spec.resources`."""
    overhead: Resources = Resources()
