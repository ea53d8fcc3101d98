"""Devices that do work beside CPUs: network and storage cards, accelerators, memory behind CXL; and where they are. Decides nothing."""

import enum
import re

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.topology import Topology


class DeviceKind(enum.StrEnum):
    NETWORK = "network"
    INFINIBAND = "infiniband"
    NVME = "nvme"
    GPU = "gpu"
    ACCELERATOR = "accelerator"
    CXL_MEMORY = "cxl-memory"


DEVICE_KINDS = tuple(kind.value for kind in DeviceKind)
_NAMESPACE = re.compile(r"(nvme[0-9]+)n[0-9]+(?:p[0-9]+)?")
"""An NVMe disk or a partition of it, and the controller that it is of."""


class NodeDoubt(enum.StrEnum):
    """Why the NUMA node of a device is not what the kernel says of it, or is doubtful."""

    NOT_SAID = "not said"
    """The firmware doesn't say, and its local CPUs are not those of one node either."""
    BY_CPUS = "by its local CPUs"
    """The kernel doesn't say the node, but its local CPUs are exactly this one's."""
    NO_SUCH_NODE = "no such node"
    """The kernel names a node that the machine doesn't have."""
    OTHER_CPUS = "other local CPUs"
    """The kernel names a node, and local CPUs that are not the node's: firmware, and modes of fewer nodes per socket, differ."""


class Device(Struct, frozen=True):
    """One function of a PCI device."""

    address: str
    """Domain, bus, device and function, such as 0000:3b:00.0."""
    kind: DeviceKind
    class_code: int
    """Base class, subclass and programming interface, a byte each."""
    vendor: int | None = None
    model: int | None = None
    driver: str | None = None
    """None: none is bound to it."""
    names: tuple[str, ...] = ()
    """What it is called elsewhere: network interfaces, InfiniBand devices, controllers."""
    numa_node: int | None = None
    """As the kernel has it. None: it doesn't know."""
    local_cpus: CpuSet | None = None
    """As the kernel has them, offline ones too. None: it doesn't say."""
    interrupts: tuple[int, ...] = ()
    max_virtual_functions: int = 0
    virtual_functions: tuple[str, ...] = ()
    """The addresses of those that there are."""
    physical_function: str | None = None
    """The address of the function that it is a virtual one of."""
    root: str | None = None
    """The PCI root that it is plugged in below, such as pci0000:3a. None: nobody says."""


class DevicePlace(Struct, frozen=True):
    node: int | None
    """None: unknown."""
    doubt: NodeDoubt | None = None
    """None: node and local CPUs agree."""


def place_of(device: Device, topology: Topology) -> DevicePlace:
    """Return the NUMA node of a device: what the kernel says of it, or else the one whose CPUs are local to it, or that there is alone."""
    if device.numa_node is None and len(topology.numa) == 1:
        return DevicePlace(topology.numa[0].id)
    local = None if device.local_cpus is None else device.local_cpus & topology.online
    if device.numa_node is None:
        alike = [node for node, cpus in topology.nodes.items() if local and cpus == local]
        return DevicePlace(alike[0], NodeDoubt.BY_CPUS) if alike else DevicePlace(None, NodeDoubt.NOT_SAID)
    if device.numa_node not in topology.node_ids:
        return DevicePlace(None, NodeDoubt.NO_SUCH_NODE)
    own = topology.nodes.get(device.numa_node, CpuSet())
    # A node without CPUs has others near it; those of a device there are these.
    is_odd = bool(own) and local is not None and local != own
    return DevicePlace(device.numa_node, NodeDoubt.OTHER_CPUS if is_odd else None)


def by_node(devices: tuple[Device, ...], topology: Topology) -> tuple[tuple[int | None, tuple[Device, ...]], ...]:
    """Group devices by NUMA node, in order of addresses; those of unknown nodes last."""
    places = {device.address: place_of(device, topology).node for device in devices}
    known = NumaSet.from_ids(node for node in places.values() if node is not None)
    nodes: list[int | None] = [*known, *([None] if None in places.values() else [])]
    return tuple((node, tuple(d for d in devices if places[d.address] == node)) for node in nodes)


class PlacedDevices(Struct, frozen=True):
    """What there is to be near on a machine."""

    placed: tuple[tuple[Device, int | None], ...] = ()
    """Each with its NUMA node, by address. None: the node is unknown."""
    problem: str = ""
    """Why they are not known. Empty: these are all."""

    @classmethod
    def of(cls, devices: tuple[Device, ...], topology: Topology) -> "PlacedDevices":
        return cls(tuple((device, place_of(device, topology).node) for device in devices))

    def called(self, name: str) -> tuple[tuple[Device, int | None], ...]:
        """Return the devices that go by a name: all of a kind, or the one with this address or interface, or the controller of this disk.

        The name of a kind is that of no device: whoever may rename an interface would take the kind over.
        """
        if name in DEVICE_KINDS:
            return tuple(each for each in self.placed if each[0].kind == name)
        disk = _NAMESPACE.fullmatch(name)
        names = {name, disk[1]} if disk else {name}
        return tuple(each for each in self.placed if each[0].address == name or not names.isdisjoint(each[0].names))
