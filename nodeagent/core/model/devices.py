"""PCI devices and their NUMA nodes. They include network and storage cards, accelerators, and memory behind CXL. This module makes no
decisions.
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
    """Reason to doubt the NUMA node that the kernel reports for a device, or to assume a node that it doesn't report."""

    NOT_SAID = "not said"
    """Unknown node: the kernel reports none, and the device's local CPUs aren't exactly the CPUs of any node."""
    BY_CPUS = "by its local CPUs"
    """Assumed node: the kernel reports none, but the device's local CPUs are exactly the CPUs of this node."""
    NO_SUCH_NODE = "no such node"
    """Impossible node: the kernel reports a node that the machine doesn't have."""
    OTHER_CPUS = "other local CPUs"
    """Contradicted node: the kernel reports it, but the device's local CPUs aren't the node's CPUs. The cause is faulty firmware, or a
    firmware setting for fewer nodes per socket.
    """


class Device(Struct, frozen=True):
    """One PCI function, with its properties from /sys."""

    address: str
    """PCI address: domain, bus, device and function, such as 0000:3b:00.0."""
    kind: DeviceKind
    class_code: int
    """PCI class code: base class, subclass and programming interface, one byte each."""
    vendor: int | None = None
    model: int | None = None
    driver: str | None = None
    """Name of the driver that is bound to the function. None means that no driver is bound."""
    names: tuple[str, ...] = ()
    """Kernel names of the device's network interfaces, InfiniBand devices and controllers."""
    numa_node: int | None = None
    """NUMA node that the kernel reports. None means that the kernel doesn't know the node."""
    local_cpus: CpuSet | None = None
    """Local CPUs that the kernel reports, including offline CPUs. None means that the kernel reports none."""
    interrupts: tuple[int, ...] = ()
    max_virtual_functions: int = 0
    virtual_functions: tuple[str, ...] = ()
    """PCI addresses of this function's virtual functions (SR-IOV)."""
    physical_function: str | None = None
    """PCI address of the physical function, if this is a virtual function (SR-IOV)."""
    root: str | None = None
    """PCI root complex of the device, such as pci0000:3a. None means that it is unknown."""


class DevicePlace(Struct, frozen=True):
    node: int | None
    """NUMA node of the device. None means that it is unknown."""
    doubt: NodeDoubt | None = None
    """Reason to doubt `node`. None means that the kernel's information about the node and the local CPUs agrees."""


def find_node_of(device: Device, topology: Topology) -> DevicePlace:
    """Determine the NUMA node of a device: the node that the kernel reports, or else the machine's only node, or else the node whose CPUs
    are exactly the device's local CPUs.
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
    """Group devices by their NUMA nodes, in ascending order. The group of devices whose node is unknown comes last."""
    places = {device.address: find_node_of(device, topology).node for device in devices}
    known = NumaSet.from_ids(node for node in places.values() if node is not None)
    nodes: list[int | None] = [*known, *([None] if None in places.values() else [])]
    return tuple((node, tuple(d for d in devices if places[d.address] == node)) for node in nodes)


class PlacedDevices(Struct, frozen=True):
    """PCI devices of the machine with their NUMA nodes. Pods can ask for CPUs and memory near these devices."""

    placed: tuple[tuple[Device, int | None], ...] = ()
    """Pairs of device and NUMA node, sorted by PCI address. None instead of a node means that the node is unknown."""
    problem: str = ""
    """Reason why the devices couldn't be read. Empty means that they were read."""

    @classmethod
    def of(cls, devices: tuple[Device, ...], topology: Topology) -> "PlacedDevices":
        return cls(tuple((device, find_node_of(device, topology).node) for device in devices))

    def find_named(self, name: str) -> tuple[tuple[Device, int | None], ...]:
        """Return the devices that a name matches. The name is a kind of devices, a PCI address, or the name of an interface, controller or
        disk.

        A name such as `network` always means the kind, even if some device has this name, too. Otherwise users could change what it matches
        by renaming an interface.
        """
        if name in DEVICE_KINDS:
            return tuple(each for each in self.placed if each[0].kind == name)
        disk = _NVME_DISK.fullmatch(name)
        names = {name, disk[1]} if disk else {name}
        return tuple(each for each in self.placed if each[0].address == name or not names.isdisjoint(each[0].names))
