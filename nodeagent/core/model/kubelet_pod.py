"""A pod as kubelet itself has it, as far as NRI doesn't tell: all containers, what they are, and what they and the pod ask for."""

from msgspec import Struct

from nodeagent.core.model.pod import ContainerKind, ResourceRequirements, Resources


class KubeletContainer(Struct, frozen=True):
    name: str
    kind: ContainerKind = ContainerKind.APP
    resources: ResourceRequirements = ResourceRequirements()
    """As written: limits don't stand for missing requests yet."""


class KubeletPod(Struct, frozen=True):
    uid: str
    containers: tuple[KubeletContainer, ...] = ()
    """All of them: init containers and sidecars first, each kind in the pod's order; last what was added to the pod while it ran."""
    resources: ResourceRequirements | None = None
    """The pod's own `spec.resources`."""
    overhead: Resources = Resources()
