"""What a pod of a container runtime says of itself, in annotations: what NRI doesn't tell. Knows no annotation's name and no notation."""

from msgspec import Struct

from nodeagent.core.model.pod import ContainerKind, Resources


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

    def container(self, name: str) -> StatedContainer:
        return next((stated for stated in self.containers if stated.name == name), StatedContainer(name))
