"""Differences between the container runtimes that support NRI."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from nodeagent.core.model.state import Origin


class Adapter(Struct, frozen=True):
    name: str
    """Name by which the runtime introduces itself in NRI's Configure call. The source and the domain of the runtime's pods have the same
    name.
    """

    @property
    def origin(self) -> Origin:
        return Origin(self.name, self.name, self.name)


CONTAINERD = Adapter("containerd")
CRIO = Adapter("cri-o")
_BY_NAME: Mapping[str, Adapter] = MappingProxyType({adapter.name: adapter for adapter in (CONTAINERD, CRIO)})


def find_adapter(runtime_name: str) -> Adapter:
    """Return the adapter for a runtime name, ignoring case. For an unknown runtime, return the adapter of containerd."""
    return _BY_NAME.get(runtime_name.lower(), CONTAINERD)
