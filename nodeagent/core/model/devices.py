"""PCI devices and their NUMA nodes. The devices include network and storage cards, accelerators, and memory behind CXL. This module makes
no decisions.
"""

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
_NVME_DISK = re.compile(r"(nvme[0-9]+)n[0-9]+(?:p[0-9]+)?")
"""Pattern of the name of an NVMe disk or partition, with the controller's name as its group."""


class NodeDoubt(enum.StrEnum):
    """Reason to doubt the NUMA node of a device, or to assume another node than the kernel's."""

    NOT_SAID = "not said"
    """The firmware doesn't name a node, and the device's local CPUs aren't exactly the CPUs of one node."""
    BY_CPUS = "by its local CPUs"
    """The kernel doesn't name a node, but the device's local CPUs are exactly one node's CPUs, so this node is assumed."""
    NO_SUCH_NODE = "no such node"
    """The kernel names a node that the machine doesn't have."""
    OTHER_CPUS = "other local CPUs"
    """The kernel names a node, but the device's local CPUs belong to another node. This happens with some firmware, and in modes with fewer
    nodes per socket.
    """


class Device(Struct, frozen=True):
    """One function of a PCI device."""

    address: str
    """Domain, bus, device and function, such as 0000:3b:00.0."""
    kind: DeviceKind
    class_code: int
    """Base class, subclass and programming interface, in one byte each."""
    vendor: int | None = None
    model: int | None = None
    driver: str | None = None
    """Driver bound to the function. None means that it has no driver."""
    names: tuple[str, ...] = ()
    """Names that the kernel gives to the device's network interfaces, InfiniBand devices and controllers."""
    numa_node: int | None = None
    """NUMA node according to the kernel. None means that the kernel doesn't know the node."""
    local_cpus: CpuSet | None = None
    """Local CPUs according to the kernel, including offline ones. None means that the kernel doesn't know these CPUs."""
    interrupts: tuple[int, ...] = ()
    max_virtual_functions: int = 0
    virtual_functions: tuple[str, ...] = ()
    """Addresses of the virtual functions of this function."""
    physical_function: str | None = None
    """Address of the physical function, if this is a virtual function."""
    root: str | None = None
    """PCI root above the device, such as pci0000:3a. None means that the root is unknown."""


class DevicePlace(Struct, frozen=True):
    node: int | None
    """NUMA node of the device. None means that the node is unknown."""
    doubt: NodeDoubt | None = None
    """Reason why the node is doubtful. None means that the node and the local CPUs agree."""


def find_node_of(device: Device, topology: Topology) -> DevicePlace:
    """Return the NUMA node of a device. This is the node that the kernel names, or the node with exactly the device's local CPUs, or the
    machine's only node.
    """
    if device.numa_node is None and len(topology.numa) == 1:
        return DevicePlace(topology.numa[0].id)
    local = None if device.local_cpus is None else device.local_cpus & topology.online
    if device.numa_node is None:
        alike = [node for node, cpus in topology.nodes.items() if local and cpus == local]
        return DevicePlace(alike[0], NodeDoubt.BY_CPUS) if alike else DevicePlace(None, NodeDoubt.NOT_SAID)
    if device.numa_node not in topology.node_ids:
        return DevicePlace(None, NodeDoubt.NO_SUCH_NODE)
    own = topology.nodes.get(device.numa_node, CpuSet())
    # If a NUMA node has no CPUs, the kernel reports CPUs of nearby nodes as local to the node and its devices.
    is_odd = bool(own) and local is not None and local != own
    return DevicePlace(device.numa_node, NodeDoubt.OTHER_CPUS if is_odd else None)


def group_by_node(devices: tuple[Device, ...], topology: Topology) -> tuple[tuple[int | None, tuple[Device, ...]], ...]:
    """Group devices by NUMA node, sorted by address. Devices whose node is unknown come last."""
    places = {device.address: find_node_of(device, topology).node for device in devices}
    known = NumaSet.from_ids(node for node in places.values() if node is not None)
    nodes: list[int | None] = [*known, *([None] if None in places.values() else [])]
    return tuple((node, tuple(d for d in devices if places[d.address] == node)) for node in nodes)


class PlacedDevices(Struct, frozen=True):
    """PCI devices of a machine, near which pods can ask to be."""

    placed: tuple[tuple[Device, int | None], ...] = ()
    """Devices with their NUMA nodes, sorted by address. A node of None is unknown."""
    problem: str = ""
    """Reason why the devices are unknown. Empty means that the devices are known."""

    @classmethod
    def of(cls, devices: tuple[Device, ...], topology: Topology) -> "PlacedDevices":
        return cls(tuple((device, find_node_of(device, topology).node) for device in devices))

    def find_named(self, name: str) -> tuple[tuple[Device, int | None], ...]:
        """Return the devices with this name, which is a kind of devices or a device's address, interface, controller or disk.

        The name of a kind always means all devices of the kind, even if a single device has the same name. Otherwise users could change
        the meaning by renaming an interface.
        """
        if name in DEVICE_KINDS:
            return tuple(each for each in self.placed if each[0].kind == name)
        disk = _NVME_DISK.fullmatch(name)
        names = {name, disk[1]} if disk else {name}
        return tuple(each for each in self.placed if each[0].address == name or not names.isdisjoint(each[0].names))
