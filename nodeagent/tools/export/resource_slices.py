"""Formatter of a node's devices for Kubernetes' dynamic resource allocation: `nodeagent topology -o resourceslice`.

The ResourceSlices (resource.k8s.io/v1) use the names and attributes of existing drivers: single CPUs, as dra-driver-cpu lists them in its
individual mode, memory by NUMA node, cards by PCI address. Slices don't show which devices are in use, because the claims show the
allocations.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nodeagent.core.model.devices import Device, find_node_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Topology
from nodeagent.core.resources.claims.inventory import DRIVERS, Value, claimable

Document = dict[str, Any]
API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"
MOST_DEVICES = 128
"""Maximum number of devices in a slice (ResourceSliceMaxDevices)."""
_MOST_LISTED = 32
"""Maximum number of values in one list. A device may have 48 values (ResourceSliceMaxAttributeValuesPerDevice), and up to 10 attributes
aren't lists.
"""


def resource_slices(
    name: str,
    topology: Topology,
    reserved: CpuSet,
    devices: Iterable[Device],
    *,
    has_lists: bool = False,
    maps_cpus: bool = False,
) -> list[Document]:
    """Describe a node's devices as ResourceSlices.

    Args:
        name: the node's name in Kubernetes.
        topology: the current machine.
        reserved: CPUs that are never exclusive. Slices don't list them.
        devices: PCI devices.
        has_lists: whether the cluster supports attributes with several values (KEP-5491, feature gate DRAListTypeAttributes).
        maps_cpus: whether the cluster supports the mapping of devices to CPUs (KEP-5517, feature gate DRANodeAllocatableResources).
    """
    placed = ((device, find_node_of(device, topology).node) for device in devices)
    pools: dict[str, list[Document]] = {driver: [] for driver in DRIVERS}
    for device in claimable(topology, reserved, placed, lists_nodes=has_lists):
        attributes = {
            key: _describe_value(value)
            for key, value in device.attributes
            if not isinstance(value, tuple) or (has_lists and len(value) <= _MOST_LISTED)
        }
        document: Document = {"attributes": attributes}
        if device.capacity:
            document["capacity"] = {key: {"value": str(Quantity.of_bytes(size))} for key, size in device.capacity}
        document["name"] = device.name
        if maps_cpus and device.cpu is not None:
            document["nodeAllocatableResources"] = {"cpu": {"mapping": {"deviceMultiplier": "1"}}}
        pools[device.driver].append(document)
    return [document for driver, pool in pools.items() for document in _describe_pool(name, driver, pool)]


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


def _describe_value(value: Value) -> Document:
    if isinstance(value, tuple):
        return {"ints" if isinstance(value[0], int) else "strings": list(value)}
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case str():
            return {"string": value}
