"""Devices that containers hold."""

import re

from msgspec import Struct

from nodeagent.core.model.idset import NumaSet

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class HeldDevice(Struct, frozen=True):
    """A container's device, of an extended resource or of a claim."""

    resource: str
    """Extended resource of the device, or driver of a device from a claim."""
    id: str
    """ID of the device. For a discovered device this is its PCI address."""
    nodes: NumaSet = NumaSet()
    """NUMA nodes near the device when it was allocated. Empty means that these nodes are unknown."""
    kind: str = ""
    """Kind of the device (core/model/devices.py). It is empty if the device wasn't discovered by the agent."""
    names: tuple[str, ...] = ()
    """Names of the device when it was allocated."""
    claim: str = ""
    """Claim to which the device belongs. Several containers may share the device of a claim. Empty means that the device belongs to one
    container.
    """
    lists_minus_one: bool = False
    """Whether the plugin lists the node -1 among the device's nodes. A device whose only listed node is -1 has no known nodes."""

    @property
    def key(self) -> tuple[str, str]:
        """Return the key that identifies the device. A PCI function has the same key under every resource."""
        return ("", self.id) if _PCI_ADDRESS.fullmatch(self.id) else (self.resource, self.id)
