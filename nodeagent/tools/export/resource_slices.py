"""A node's devices for Kubernetes' dynamic resource allocation: `nodeagent topology -o resourceslice`.

ResourceSlices (resource.k8s.io/v1) with the names and attributes of existing drivers: single CPUs, as dra-driver-cpu lists them in its
individual mode, memory by NUMA node, cards by PCI address. Slices don't show which devices are in use, because the claims show the
allocations.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nodeagent.core.model.devices import Device, find_node_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.claims.inventory import DRIVERS, ClaimableDevice, claimable

Document = dict[str, Any]
API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"
MOST_DEVICES = 128
"""Largest number of devices in a slice (ResourceSliceMaxDevices)."""


def resource_slices(name: str, topology: Topology, reserved: CpuSet, devices: Iterable[Device]) -> list[Document]:
    """Describe a node.

    Args:
        name: the node's name in Kubernetes.
        topology: the current machine.
        reserved: CPUs that are never exclusive. Slices don't list them.
        devices: PCI devices.
    """
    claimable_devices = claimable(
        topology, reserved, ((device, find_node_of(device, topology).node) for device in devices)
    )
    return [
        document
        for driver in DRIVERS
        for document in _describe_pool(
            name, driver, [_describe_device(device) for device in claimable_devices if device.driver == driver]
        )
    ]


def _describe_pool(node: str, driver: str, devices: Sequence[Document]) -> Iterator[Document]:
    parts = [devices[first : first + MOST_DEVICES] for first in range(0, len(devices), MOST_DEVICES)]
    for number, part in enumerate(parts):
        yield {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": f"{node}-{driver}-{number}"},
            "spec": {
                "devices": list(part),
                "driver": driver,
                "nodeName": node,
                "pool": {"generation": 1, "name": node, "resourceSliceCount": len(parts)},
            },
        }


def _describe_device(device: ClaimableDevice) -> Document:
    # Only an alpha version of the API has attributes with several values (KEP-5491).
    attributes = {key: _describe_value(value) for key, value in device.attributes if not isinstance(value, tuple)}
    document: Document = {"attributes": attributes}
    if device.capacity:
        document["capacity"] = {key: {"value": str(Quantity.of_bytes(size))} for key, size in device.capacity}
    return {**document, "name": device.name}


def _describe_value(value: int | str | bool) -> Document:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case str():
            return {"string": value}
