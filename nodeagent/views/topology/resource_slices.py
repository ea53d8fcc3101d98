"""What a node has, as Kubernetes' dynamic resource allocation lists it: `nodeagent topology -o resourceslice`.

ResourceSlices (resource.k8s.io/v1) with the names and attributes that drivers of the field give: CPUs one by one, as dra-driver-cpu does in
its individual mode, memory by NUMA node, cards by PCI address. Which of it is in use is no part of a slice: allocations are in claims.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nodeagent.core.model.devices import Device, place_of
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Cpu, Topology

Document = dict[str, Any]
API_VERSION, KIND = "resource.k8s.io/v1", "ResourceSlice"
MOST_DEVICES = 128
"""In one slice (ResourceSliceMaxDevices)."""
LONGEST_STRING = 64
"""Of an attribute (DeviceAttributeMaxValueLength)."""
CPU_DRIVER, MEMORY_DRIVER, CARD_DRIVER = "dra.cpu", "dra.memory", "nodeagent.io"
_NUMA_NODE = "resource.kubernetes.io/numaNode"
_BUS_ID = "resource.kubernetes.io/pciBusID"
_CORE_TYPES = {None: "standard", "performance": "p-core", "efficiency": "e-core"}
"""dra-driver-cpu's words."""


def resource_slices(name: str, topology: Topology, reserved: CpuSet, devices: Iterable[Device]) -> list[Document]:
    """Describe a node.

    Args:
        name: the node's, in Kubernetes.
        topology: the machine as it is now.
        reserved: CPUs that nobody gets alone: they are in no slice.
        devices: PCI devices.
    """
    cpus = [cpu for cpu in topology.cpus if cpu.id not in reserved]
    has_siblings = len({(cpu.socket, cpu.numa, cpu.core) for cpu in topology.cpus}) < len(topology.cpus)
    return [
        *_pool(name, CPU_DRIVER, [_cpu(cpu, has_siblings=has_siblings) for cpu in cpus]),
        *_pool(name, MEMORY_DRIVER, list(_memory(topology))),
        *_pool(name, CARD_DRIVER, [_card(device, topology) for device in devices]),
    ]


def _pool(node: str, driver: str, devices: Sequence[Document]) -> Iterator[Document]:
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


def _cpu(cpu: Cpu, *, has_siblings: bool) -> Document:
    attributes: dict[str, int | str | bool] = {
        f"{CPU_DRIVER}/coreID": cpu.core,
        f"{CPU_DRIVER}/coreType": _CORE_TYPES[cpu.core_class],
        f"{CPU_DRIVER}/cpuID": cpu.id,
        f"{CPU_DRIVER}/numaNodeID": cpu.numa,
        f"{CPU_DRIVER}/smtEnabled": has_siblings,
        f"{CPU_DRIVER}/socketID": cpu.socket,
        _NUMA_NODE: cpu.numa,
    }
    if cpu.uncore is not None:
        attributes[f"{CPU_DRIVER}/cacheL3ID"] = cpu.uncore
    return {"attributes": _attributes(attributes), "name": f"cpudev{cpu.id:03}"}


def _memory(topology: Topology) -> Iterator[Document]:
    for node in topology.numa:
        for resource, size in (("memory", node.memory_bytes), *node.hugepages):
            if not size:
                continue
            page = resource.partition("-")[2]
            attributes: dict[str, int | str | bool] = {
                f"{MEMORY_DRIVER}/hugeTLB": bool(page),
                f"{MEMORY_DRIVER}/numaNode": node.id,
                _NUMA_NODE: node.id,
            }
            if page:
                attributes[f"{MEMORY_DRIVER}/pageSize"] = page
            yield {
                "attributes": _attributes(attributes),
                "capacity": {f"{MEMORY_DRIVER}/size": {"value": str(Quantity.of_bytes(size))}},
                "name": f"{resource.lower()}-{node.id}",
            }


def _card(device: Device, topology: Topology) -> Document:
    place = place_of(device, topology)
    attributes: dict[str, int | str | bool] = {
        f"{CARD_DRIVER}/kind": device.kind.value,
        _BUS_ID: device.address,
    }
    if place.node is not None:
        attributes[_NUMA_NODE] = place.node
    for key, number in (("vendor", device.vendor), ("model", device.model)):
        if number is not None:
            attributes[f"{CARD_DRIVER}/{key}"] = f"{number:04x}"
    if device.driver is not None:
        attributes[f"{CARD_DRIVER}/driver"] = device.driver[:LONGEST_STRING]
    if device.names:
        attributes[f"{CARD_DRIVER}/interface"] = device.names[0][:LONGEST_STRING]
    return {"attributes": _attributes(attributes), "name": "pci-" + device.address.replace(":", "-").replace(".", "-")}


def _attributes(values: dict[str, int | str | bool]) -> dict[str, Document]:
    return {key: _typed(value) for key, value in sorted(values.items())}


def _typed(value: int | str | bool) -> Document:
    match value:
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case str():
            return {"string": value}
