"""Devices of a node that claims can request: single CPUs (as in the individual mode of dra-driver-cpu), memory by NUMA node, and PCI cards.

The devices and their attributes have the same names as in existing DRA drivers. Allocations are not recorded here.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from nodeagent.core.model.claims import CARD_DRIVER, CPU_DRIVER, MEMORY_DRIVER, format_card_name, format_cpu_name
from nodeagent.core.model.devices import Device
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Cpu, Topology

DRIVERS = (CPU_DRIVER, MEMORY_DRIVER, CARD_DRIVER)
LONGEST_STRING = 64
"""Maximum length of an attribute's text in characters. Kubernetes has the same limit (DeviceAttributeMaxValueLength)."""
SIZE = f"{MEMORY_DRIVER}/size"
"""Name of the capacity that contains a memory device's size in bytes."""
_NUMA_NODE = "resource.kubernetes.io/numaNode"
_BUS_ID = "resource.kubernetes.io/pciBusID"
_ROOT = "resource.kubernetes.io/pcieRoot"
_CORE_TYPES = {None: "standard", "performance": "p-core", "efficiency": "e-core"}
"""Values of the attribute `coreType` by class of cores, as in dra-driver-cpu. None is the class of all cores on machines without core
classes.
"""

Value = int | str | bool | tuple[str, ...] | tuple[int, ...]
"""Value of an attribute. A tuple is a list of values. A constraint accepts the list if any of its values matches (KEP-5491)."""


class ClaimableDevice(Struct, frozen=True):
    driver: str
    name: str
    attributes: tuple[tuple[str, Value], ...]
    """Attributes by qualified name, in alphabetical order of names."""
    capacity: tuple[tuple[str, int], ...] = ()
    """Capacities by qualified name."""
    cpu: int | None = None
    """ID of the CPU. None means that the device isn't a CPU."""
    memory: tuple[int, str] | None = None
    """NUMA node and resource (`memory` or `hugepages-<size>`) of the memory. None means that the device isn't memory."""
    address: str = ""
    """Address of the PCI function. Empty means that the device isn't a PCI card."""

    def attribute(self, name: str) -> Value | None:
        return next((value for key, value in self.attributes if key == name), None)


def claimable(
    topology: Topology, reserved: CpuSet, cards: Iterable[tuple[Device, int | None]], *, lists_nodes: bool = False
) -> tuple[ClaimableDevice, ...]:
    """Return all devices that claims can request: CPUs first, then memory, then PCI cards.

    Args:
        topology: the current machine.
        reserved: CPUs that are never allocated exclusively.
        cards: PCI devices, each with its NUMA node, or None if the node is unknown.
        lists_nodes: whether a card's attribute `numaNode` is a list of the card's node and the nearest nodes of the same socket, instead of
            a single node (KEP-6072, feature gate DRAListTypeAttributes).
    """
    cards = tuple(cards)
    roots = _find_cpus_near_roots(topology, cards)
    has_siblings = len({(cpu.socket, cpu.numa, cpu.core) for cpu in topology.cpus}) < len(topology.cpus)
    return (
        *(_make_cpu(cpu, roots, has_siblings=has_siblings) for cpu in topology.cpus if cpu.id not in reserved),
        *_make_memory(topology),
        *(
            _make_card(device, _list_near_nodes(topology, node) if lists_nodes and node is not None else node)
            for device, node in cards
        ),
    )


def _list_near_nodes(topology: Topology, node: int) -> tuple[int, ...]:
    """Return a NUMA node, followed by those other nodes that have the smallest distance to it, in ascending order.

    Nodes that are known to be in another socket are left out. A node without CPUs counts as part of every socket. The result is the same as
    that of Kubernetes' library for DRA drivers (package deviceattribute, ListAttribute).
    """
    distances = next((one.distances for one in topology.numa if one.id == node), None)
    others = {one.id: far for one, far in zip(topology.numa, distances or (), strict=False) if one.id != node}
    sockets = {cpu.numa: cpu.socket for cpu in reversed(topology.cpus)}
    socket = sockets.get(node)
    nearest = (
        other
        for other, far in others.items()
        if far == min(others.values()) and (socket is None or sockets.get(other, socket) == socket)
    )
    return node, *sorted(nearest)


def _find_cpus_near_roots(topology: Topology, cards: Iterable[tuple[Device, int | None]]) -> dict[str, CpuSet]:
    """Return the CPUs near each PCIe root. These are the CPUs on the NUMA nodes of the cards below the root. For a card whose NUMA node is
    unknown, the CPUs in the kernel's `local_cpulist` are used.
    """
    found: dict[str, CpuSet] = {}
    for card, node in cards:
        local = card.local_cpus if node is None else topology.nodes.get(node)
        if card.root is not None and local is not None:
            found[card.root] = found.get(card.root, CpuSet()) | local
    return found


def _make_cpu(cpu: Cpu, roots: Mapping[str, CpuSet], *, has_siblings: bool) -> ClaimableDevice:
    attributes: dict[str, Value] = {
        f"{CPU_DRIVER}/coreID": cpu.core,
        f"{CPU_DRIVER}/coreType": _CORE_TYPES[cpu.core_class],
        f"{CPU_DRIVER}/cpuID": cpu.id,
        f"{CPU_DRIVER}/numaNodeID": cpu.numa,
        f"{CPU_DRIVER}/smtEnabled": has_siblings,
        f"{CPU_DRIVER}/socketID": cpu.socket,
        _NUMA_NODE: cpu.numa,
    }
    near = tuple(sorted(root for root, cpus in roots.items() if cpu.id in cpus))
    if near:
        attributes[_ROOT] = near
    if cpu.uncore is not None:
        attributes[f"{CPU_DRIVER}/cacheL3ID"] = cpu.uncore
    return ClaimableDevice(CPU_DRIVER, format_cpu_name(cpu.id), _sort_items(attributes), cpu=cpu.id)


def _make_memory(topology: Topology) -> Iterator[ClaimableDevice]:
    for node in topology.numa:
        for resource, size in (("memory", node.memory_bytes), *node.hugepages):
            if not size:
                continue
            page = resource.partition("-")[2]
            attributes: dict[str, Value] = {
                f"{MEMORY_DRIVER}/hugeTLB": bool(page),
                f"{MEMORY_DRIVER}/numaNode": node.id,
                _NUMA_NODE: node.id,
            }
            if page:
                attributes[f"{MEMORY_DRIVER}/pageSize"] = page
            name = f"{resource.lower()}-{node.id}"
            place = (node.id, resource)
            yield ClaimableDevice(MEMORY_DRIVER, name, _sort_items(attributes), ((SIZE, size),), memory=place)


def _make_card(device: Device, node: int | tuple[int, ...] | None) -> ClaimableDevice:
    attributes: dict[str, Value] = {
        f"{CARD_DRIVER}/kind": device.kind.value,
        _BUS_ID: device.address,
    }
    if node is not None:
        attributes[_NUMA_NODE] = node
    if device.root is not None:
        attributes[_ROOT] = device.root
    for key, number in (("vendor", device.vendor), ("model", device.model)):
        if number is not None:
            attributes[f"{CARD_DRIVER}/{key}"] = f"{number:04x}"
    if device.driver is not None:
        attributes[f"{CARD_DRIVER}/driver"] = device.driver[:LONGEST_STRING]
    if device.names:
        attributes[f"{CARD_DRIVER}/interface"] = device.names[0][:LONGEST_STRING]
    return ClaimableDevice(
        CARD_DRIVER, format_card_name(device.address), _sort_items(attributes), address=device.address
    )


def _sort_items(values: dict[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(values.items()))
