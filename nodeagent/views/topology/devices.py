"""Documents of PCI devices, with stable field names, and their rows in a drawing."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from nodeagent.core.model.devices import Device, DevicePlace, NodeDoubt, find_node_of, group_by_node
from nodeagent.core.model.state import NodeState
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.devices.holdings import pods_with_devices
from nodeagent.views.topology.parts import DeviceSection
from nodeagent.views.wording.words import format_count

Document = dict[str, Any]


class DeviceOwner(Struct, frozen=True):
    """Container to which a device is allocated, and the extended resource or claim through which the container got it."""

    pod: str
    container: str
    resource: str
    claim: str = ""
    """Name of the resource claim through which the container got the device. Empty means that it requested an extended resource."""


OwnersByAddress = Mapping[str, tuple[DeviceOwner, ...]]
"""Owners of devices, by PCI address. A device may have several owners, for instance if an init container used it before."""


def find_device_owners(state: NodeState) -> OwnersByAddress:
    """Return the owners of all allocated devices, by PCI address."""
    found: dict[str, tuple[DeviceOwner, ...]] = {}
    names = {entry.pod.uid: entry.pod.full_name for entry in state.entries}
    names |= {one.uid: one.name or one.uid for one in state.promises.unrecovered}
    for uid, held in pods_with_devices(state.promises):
        for container, devices in held.devices:
            for device in devices:
                owner = DeviceOwner(names.get(uid, uid), container, device.resource, device.claim)
                found[device.id] = (*found.get(device.id, ()), owner)
    return found


def describe_devices(
    devices: Sequence[Device], topology: Topology, owners: OwnersByAddress = MappingProxyType({})
) -> list[Document]:
    """Describe all devices, including virtual functions."""
    documents = []
    for device in devices:
        place = find_node_of(device, topology)
        documents.append(
            {
                "address": device.address,
                "class": f"0x{device.class_code:06x}",
                "driver": device.driver,
                "interrupts": list(device.interrupts),
                "kind": device.kind.value,
                "localCpus": None if device.local_cpus is None else str(device.local_cpus),
                "maxVirtualFunctions": device.max_virtual_functions,
                "model": None if device.model is None else f"0x{device.model:04x}",
                "names": list(device.names),
                "numaNode": place.node,
                "numaNodeDoubt": None if place.doubt is None else place.doubt.value,
                "numaNodeOfKernel": device.numa_node,
                "owners": [
                    ({"claim": one.claim} if one.claim else {})
                    | {"container": one.container, "pod": one.pod, "resource": one.resource}
                    for one in owners.get(device.address, ())
                ],
                "pcieRoot": device.root,
                "physicalFunction": device.physical_function,
                "vendor": None if device.vendor is None else f"0x{device.vendor:04x}",
                "virtualFunctions": list(device.virtual_functions),
            }
        )
    return documents


def describe_device_sections(
    devices: Sequence[Device], topology: Topology, owners: OwnersByAddress = MappingProxyType({})
) -> tuple[DeviceSection, ...]:
    """Describe the devices of each NUMA node as rows of a drawing. Unallocated virtual functions are only counted, in the row of their
    physical function.
    """
    addresses = {device.address for device in devices}
    shown = tuple(d for d in devices if d.physical_function not in addresses or d.address in owners)
    return tuple(
        DeviceSection(
            "devices of unknown NUMA node (not reported by the firmware)"
            if node is None
            else f"devices of NUMA node {node}",
            tuple(
                _format_device(device, find_node_of(device, topology), owners.get(device.address, ()))
                for device in members
            ),
        )
        for node, members in group_by_node(shown, topology)
    )


def _format_device(device: Device, place: DevicePlace, owners: tuple[DeviceOwner, ...]) -> tuple[str, ...]:
    details = [
        f"of {one.pod} {one.container} {f'by claim {one.claim}' if one.claim else f'as {one.resource}'}"
        for one in owners
    ]
    if device.interrupts:
        details.append(format_count(len(device.interrupts), "interrupt"))
    if device.max_virtual_functions:
        functions = format_count(device.max_virtual_functions, "virtual function")
        details.append(f"{len(device.virtual_functions)} of {functions}")
    if device.physical_function is not None:
        details.append(f"virtual function of {device.physical_function}")
    match place.doubt:
        case NodeDoubt.BY_CPUS:
            details.append(f"NUMA node derived from its local CPUs {device.local_cpus}")
        case NodeDoubt.NO_SUCH_NODE:
            details.append(f"the kernel reports node {device.numa_node}, which this machine lacks")
        case NodeDoubt.OTHER_CPUS:
            details.append(f"its local CPUs are on other nodes: {device.local_cpus}")
        case _:
            pass
    return (
        device.address,
        device.kind.value,
        " ".join(device.names) or "-",
        device.driver or "no driver",
        ", ".join(details),
    )
