"""Parser of short descriptions of a machine, such as `2s.2n.8c.2t`. Users try out machines that aren't available with such descriptions.

Each number is per parent: sockets, NUMA nodes per socket, level-3 caches per node, cores per cache (or node), threads
per core. The last number is efficiency cores per node, which have one thread and no level-3 cache. If there are any,
the other cores are performance cores.
"""

import re

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.quantity import Quantity, QuantitySyntaxError
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.findings import shown
from nodeagent.formats.syntax.quantity_words import explain_no_quantity
from nodeagent.formats.topology.topology_json import DEFAULT_NODE_MEMORY_BYTES

MAX_CPUS = 8_192
"""Maximum of the kernel's CONFIG_NR_CPUS."""
MAX_NODES = 1_024
"""Maximum of the kernel's CONFIG_NODES_SHIFT."""
_TOO_MUCH = 2**63 - 1
"""Largest value of an amount. Quantity.value returns this number for all larger amounts."""
_LEVELS = "snlcte"
_MOST_DIGITS = 5
_SHAPE = re.compile(r"(?:([0-9]+)s\.)?(?:([0-9]+)n\.)?(?:([0-9]+)l\.)?([0-9]+)c(?:\.([0-9]+)t)?(?:\.([0-9]+)e)?")
_LOCAL, _SAME_SOCKET, _OTHER_SOCKET = 10, 12, 20
"""Distances that firmware usually sets: the kernel's LOCAL_DISTANCE and remote distances."""


class TopologySpecError(NodeAgentError):
    """A text is not a valid short description of a machine."""

    exit_status = 64
    """Exit status for a wrong argument (EX_USAGE of sysexits.h)."""

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(
            f"--topology {shown(text)}: {problem}",
            hint="write --topology 2s.2n.8c.2t for 2 sockets of 2 NUMA nodes of 8 cores of 2 threads; 4l before the cores means "
            "4 L3 caches per node; 8e at the end means 8 more efficiency cores per node; memory=64Gi and hugepages-2Mi=1Gi "
            "after commas are per node",
        )


def topology_from_spec(text: str) -> Topology:
    """Build the machine. CPUs are numbered as by most firmware: first one thread of each core, then the others.

    Args:
        text: `[Ss.][Nn.][Ll.]Cc[.Tt][.Ee]`, then amounts per NUMA node after commas; a missing number is 1. Missing efficiency cores are
            0, and missing memory is 64Gi.

    Raises:
        TopologySpecError: the text does not describe a machine, or describes a machine that is too large.
    """
    shape, *amounts = text.split(",")
    match = _SHAPE.fullmatch(shape)
    if match is None:
        raise TopologySpecError(
            text,
            f"{shown(shape)} must have a number before each of the letters {', '.join(_LEVELS)}, in this order; only c is required",
        )
    if any(len(number) > _MOST_DIGITS for number in match.groups(default="")):
        raise TopologySpecError(
            text, f"a number may have at most {_MOST_DIGITS} digits, because a machine has at most {MAX_CPUS} CPUs"
        )
    sockets, nodes, caches, cores, threads, small = (1 if number is None else int(number) for number in match.groups())
    if not sockets * nodes * caches * cores * threads * small:
        raise TopologySpecError(text, "each number must be at least 1")
    is_hybrid = match[6] is not None
    small = small if is_hybrid else 0
    if sockets * nodes * (caches * cores * threads + small) > MAX_CPUS or sockets * nodes > MAX_NODES:
        raise TopologySpecError(text, f"a machine has at most {MAX_CPUS} CPUs and {MAX_NODES} NUMA nodes")
    per_node = caches * cores
    total = sockets * nodes * per_node
    cpus = [
        Cpu(
            id=core + thread * total,
            core=core,
            socket=core // (per_node * nodes),
            numa=core // per_node,
            # As in kubelet, a cache that the whole node shares doesn't count as an uncore cache.
            uncore=core // cores if caches > 1 else None,
            core_class="performance" if is_hybrid else None,
        )
        for thread in range(threads)
        for core in range(total)
    ]
    larger = len(cpus)
    for number in range(larger, larger + sockets * nodes * small):
        node = (number - larger) // small
        cpus.append(Cpu(number, core=number, socket=node // nodes, numa=node, core_class="efficiency"))
    l3: list[CpuSet] = []
    if match[3] is not None:
        members: dict[int, list[int]] = {}
        for cpu in cpus[:larger]:
            members.setdefault(cpu.core // cores, []).append(cpu.id)
        l3 = [CpuSet.from_ids(ids) for ids in members.values()]
    memory, pages = _parse_amounts(text, amounts)
    numa = []
    for node in range(sockets * nodes):
        distances = tuple(
            _LOCAL if other == node else _SAME_SOCKET if other // nodes == node // nodes else _OTHER_SOCKET
            for other in range(sockets * nodes)
        )
        numa.append(NumaNode(node, memory, pages, distances))
    return Topology.of(cpus, numa, l3=l3)


def _parse_amounts(text: str, parts: list[str]) -> tuple[int, tuple[tuple[str, int], ...]]:
    """Parse the amounts of memory and huge pages per NUMA node."""
    found: dict[str, int] = {}
    for part in parts:
        name, _, amount = part.partition("=")
        if name != "memory" and not name.startswith("hugepages-"):
            raise TopologySpecError(text, f"{shown(part)} is neither memory=AMOUNT nor hugepages-SIZE=AMOUNT")
        try:
            size = Quantity.parse(amount).value()
        except QuantitySyntaxError as err:
            raise TopologySpecError(text, f"{shown(part)}: {explain_no_quantity(amount)}") from err
        try:
            page = 1 if name == "memory" else Quantity.parse(name.removeprefix("hugepages-")).value()
        except QuantitySyntaxError:
            page = 0
        if not 0 < page < _TOO_MUCH:
            raise TopologySpecError(text, f"{shown(name)} needs a page size in its name, such as 2Mi")
        if not 0 <= size < _TOO_MUCH:
            raise TopologySpecError(text, f"{shown(part)}: must be from 0 to less than 8Ei")
        if size % page:
            raise TopologySpecError(text, f"{shown(part)}: must be a multiple of the page size")
        if name in found:
            raise TopologySpecError(text, f"{name} is given twice")
        found[name] = size
    memory = found.pop("memory", DEFAULT_NODE_MEMORY_BYTES)
    if sum(found.values()) > memory:
        raise TopologySpecError(
            text, f"the huge pages of a NUMA node need more than the node's {memory} bytes of memory"
        )
    return memory, tuple(sorted(found.items()))
