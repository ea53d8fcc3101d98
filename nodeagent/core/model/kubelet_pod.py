"""A pod as kubelet's pods API reports it, with data that NRI lacks: all containers of the pod, with their kinds, requests and limits."""

from msgspec import Struct

from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources


class KubeletContainer(Struct, frozen=True):
    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: ResourceRequirements = ResourceRequirements()
    """Requests and limits as in the pod's specification. Missing requests haven't been set from the limits yet."""


class KubeletPod(Struct, frozen=True):
    uid: str
    containers: tuple[KubeletContainer, ...] = ()
    """All containers of the pod: init containers and sidecars, then app containers, each in the order of the specification. Containers that
    were added to the running pod come last.
    """
    resources: ResourceRequirements | None = None
    """Resources of the pod as a whole (`spec.resources`)."""
    overhead: Resources = Resources()
