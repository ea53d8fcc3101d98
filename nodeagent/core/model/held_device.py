"""Record of a device that is allocated to a container."""

import re

from msgspec import Struct

from nodeagent.core.model.idset import NumaSet

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class HeldDevice(Struct, frozen=True):
    """A device that is allocated to a container, because the container requests an extended resource or uses a resource claim."""

    resource: str
    """Extended resource of the device. For a device of a resource claim, this is the name of the DRA driver."""
    id: str
    """Device ID. For a device that the agent discovered, this is the PCI address."""
    nodes: NumaSet = NumaSet()
    """NUMA nodes that were near the device when it was allocated. Empty means that they are unknown."""
    kind: str = ""
    """Device kind (`DeviceKind` in core/model/devices.py). Empty for a device that a device plugin reported."""
    names: tuple[str, ...] = ()
    """Names that the device had when it was allocated."""
    claim: str = ""
    """Resource claim to which the device is allocated. Several containers may share such a device. Empty means that the device was
    requested as an extended resource, and belongs to one container.
    """
    lists_minus_one: bool = False
    """Whether the device plugin lists the NUMA node -1 for the device. If it lists no other node, the device's nodes are unknown."""

    @property
    def key(self) -> tuple[str, str]:
        """Return the identity of the device on the node. A PCI function has the same key under every resource name, so it isn't allocated
        twice.
        """
        return ("", self.id) if _PCI_ADDRESS.fullmatch(self.id) else (self.resource, self.id)
