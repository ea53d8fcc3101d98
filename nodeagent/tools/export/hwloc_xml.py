"""Formatter of the machine as hwloc's XML (format 2) for lstopo and other programs with hwloc: `nodeagent topology -o hwloc-xml`.

hwloc needs a tree. A box that overlaps another box only in part, such as a cache over two NUMA nodes, is therefore left out.
"""

from collections.abc import Iterator, Mapping
from xml.sax.saxutils import quoteattr

from msgspec import Struct, field

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.topology import Cache, NumaNode, Topology
from nodeagent.tools.export.svg import FILLS, INK, NOT_OWNED, PAPER, POD_FILLS
from nodeagent.views.topology.parts import FREE, SHARED, number_pods

_CACHE_TYPES = {"unified": "0", "data": "1", "instruction": "2"}
_HIGHEST_LEVEL = {"unified": 5, "data": 5, "instruction": 3}
"""Highest cache level with a name in hwloc, by type of cache."""
_NUMA_GROUP = (("kind", "1001"), ("subkind", "0"))
"""Attributes that mark a group as created for a NUMA node (HWLOC_GROUP_KIND_MEMORY)."""


class _Object(Struct):
    kind: str
    cpus: CpuSet
    os_index: int | None = None
    attributes: tuple[tuple[str, str], ...] = ()
    infos: tuple[tuple[str, str], ...] = ()
    memory: list[NumaNode] = field(default_factory=list)
    children: list["_Object"] = field(default_factory=list)

    def insert(self, other: "_Object") -> bool:
        """Insert a box below this box. The caller inserts larger boxes first. Return False if the new box overlaps an existing box only in
        part.
        """
        for child in self.children:
            if other.cpus <= child.cpus:
                return child.insert(other)
            if not other.cpus.isdisjoint(child.cpus):
                return False
        self.children.append(other)
        return True

    def find_holder(self, cpus: CpuSet) -> "_Object":
        """Return the outermost box with exactly these CPUs. If no box has exactly these CPUs, return the innermost box that contains all of
        them.
        """
        if self.cpus == cpus:
            return self
        below = next((child for child in self.children if cpus <= child.cpus), None) if cpus else None
        return self if below is None else below.find_holder(cpus)

    def find_numa_nodes(self) -> NumaSet:
        """Return the NUMA nodes attached to this box and below."""
        nodes = NumaSet.from_ids(node.id for node in self.memory)
        for child in self.children:
            nodes |= child.find_numa_nodes()
        return nodes


def render_hwloc_xml(topology: Topology, owner: Mapping[int, str] | None = None) -> str:
    """Render the machine as a document in hwloc's XML format.

    Args:
        topology: the machine.
        owner: owner's label by CPU. With labels, each PU gets an info `Owner`, and the same colour as with `-o svg` (lstopo's
            `lstopoStyle`).
    """
    machine = _build_tree(topology, owner or {})
    writer = _XmlWriter(topology)
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        '<!DOCTYPE topology SYSTEM "hwloc2.dtd">',
        '<topology version="2.0">',
        *writer.render_object(machine, NumaSet(), 1),
        *_render_distances(topology),
        *_render_core_kinds(topology),
        "</topology>",
    ]
    return "\n".join(lines) + "\n"


def _build_tree(topology: Topology, owner: Mapping[int, str]) -> _Object:
    machine = _Object("Machine", topology.online, 0, infos=(("Backend", "nodeagent"),))
    boxes = [
        *(_Object("Package", cpus, number if number >= 0 else None) for number, cpus in topology.sockets.items()),
        *_find_dies(topology),
        *(_Object("Group", cpus, attributes=_NUMA_GROUP) for cpus in topology.nodes.values()),
        *_find_caches(topology),
        *(_Object("Core", cpus, number) for number, cpus in topology.cores.items()),
    ]
    taken = {box.cpus for box in boxes if box.kind != "Group"} | {machine.cpus}
    # a group is only needed for the memory of a NUMA node, which any other box with the same CPUs can have instead
    wanted = [box for box in boxes if box.kind != "Group" or box.cpus not in taken]
    for box in sorted(wanted, key=lambda box: -len(box.cpus)):
        machine.insert(box)
    numbers = number_pods(owner)
    fills = FILLS | {label: POD_FILLS[number % len(POD_FILLS)] for label, number in numbers.items()}
    inks = {label: INK if label in {SHARED, FREE, NOT_OWNED} else PAPER for label in fills}
    styles = {label: f"Background={fill};Text={inks[label]}" for label, fill in fills.items()}
    for cpu in topology.cpus:
        label = owner.get(cpu.id)
        infos = () if label is None else (("Owner", label), ("lstopoStyle", styles[label]))
        placed = machine.insert(_Object("PU", CpuSet.of(cpu.id), cpu.id, infos=infos))
        assert placed, "one CPU crosses nothing"
    for node in topology.numa:
        machine.find_holder(topology.nodes.get(node.id, CpuSet())).memory.append(node)
    return machine


def _find_caches(topology: Topology) -> Iterator[_Object]:
    """Yield the caches from the outermost level inwards. Within a level, the data cache comes before the instruction cache, as in hwloc."""
    l3 = (Cache(3, "unified", cpus) for cpus in topology.l3)
    for cache in sorted((*l3, *topology.caches), key=lambda cache: -cache.level):
        cpus = cache.cpus & topology.online
        if cpus and cache.level <= _HIGHEST_LEVEL[cache.type]:
            size_bytes = topology.cpu[next(iter(cpus))].l3_bytes if cache.level == 3 else cache.size_bytes
            attributes = (
                ("cache_size", str(size_bytes or 0)),  # for an unknown size, hwloc writes 0
                ("depth", str(cache.level)),
                ("cache_type", _CACHE_TYPES[cache.type]),
            )
            instructions = "i" if cache.type == "instruction" else ""
            yield _Object(f"L{cache.level}{instructions}Cache", cpus, attributes=attributes)


def _find_dies(topology: Topology) -> Iterator[_Object]:
    """Yield the dies of those packages that have more than one die."""
    members: dict[int, dict[int, CpuSet]] = {}
    for cpu in topology.cpus:
        if cpu.die is not None:
            dies = members.setdefault(cpu.socket, {})
            dies[cpu.die] = dies.get(cpu.die, CpuSet()) | CpuSet.of(cpu.id)
    for dies in members.values():
        if len(dies) > 1:
            yield from (_Object("Die", cpus, number) for number, cpus in dies.items())


class _XmlWriter:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._given = 0

    def render_object(self, box: _Object, outer: NumaSet, depth: int) -> Iterator[str]:
        """Render a box and its contents. `outer` contains the NUMA nodes of the enclosing boxes, which are local to this box, too."""
        indent = "  " * depth
        here = outer | NumaSet.from_ids(node.id for node in box.memory)
        local = here | box.find_numa_nodes()
        inside = [
            *(f"{indent}  <info name={quoteattr(name)} value={quoteattr(value)}/>" for name, value in box.infos),
            *(line for node in box.memory for line in self._render_node(node, depth + 1)),
            # objects are sorted by their lowest CPUs, because hwloc complains about any other order
            *(
                line
                for child in sorted(box.children, key=lambda child: min(child.cpus))
                for line in self.render_object(child, here, depth + 1)
            ),
        ]
        whole = self._topology.offline if box.kind == "Machine" else CpuSet()
        sets = [
            ("cpuset", _format_mask(box.cpus.bits)),
            ("complete_cpuset", _format_mask((box.cpus | whole).bits)),
            *([("allowed_cpuset", _format_mask(box.cpus.bits))] if box.kind == "Machine" else []),
            ("nodeset", _format_mask(local.bits)),
            ("complete_nodeset", _format_mask(local.bits)),
            *([("allowed_nodeset", _format_mask(local.bits))] if box.kind == "Machine" else []),
        ]
        opened = f"{indent}<object {self._format_attributes(box.kind, box.os_index, (*sets, *box.attributes))}"
        if not inside:
            yield f"{opened}/>"
            return
        yield f"{opened}>"
        yield from inside
        yield f"{indent}</object>"

    def _render_node(self, node: NumaNode, depth: int) -> Iterator[str]:
        indent, cpus = "  " * depth, _format_mask(self._topology.nodes.get(node.id, CpuSet()).bits)
        alone = _format_mask(NumaSet.of(node.id).bits)
        sets = (("cpuset", cpus), ("complete_cpuset", cpus), ("nodeset", alone), ("complete_nodeset", alone))
        yield f"{indent}<object {self._format_attributes('NUMANode', node.id, (*sets, ('local_memory', str(node.memory_bytes))))}>"
        for name, amount_bytes in node.hugepages:
            size = Quantity.parse(name.removeprefix("hugepages-")).value()
            yield f'{indent}  <page_type size="{size}" count="{amount_bytes // size}"/>'
        yield f"{indent}</object>"

    def _format_attributes(self, kind: str, os_index: int | None, others: tuple[tuple[str, str], ...]) -> str:
        self._given += 1
        index = [] if os_index is None else [("os_index", str(os_index))]
        pairs = [("type", kind), *index, *others, ("gp_index", str(self._given))]
        return " ".join(f'{name}="{value}"' for name, value in pairs)


def _format_mask(bits: int) -> str:
    """Format a bitmap in hwloc's notation: words of 32 bits, highest first."""
    words: list[str] = []
    while bits or not words:
        words.append(f"0x{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    return ",".join(reversed(words))


def _render_distances(topology: Topology) -> list[str]:
    count = len(topology.numa)
    if count < 2 or any(len(node.distances or ()) != count for node in topology.numa):
        return []
    ids = "".join(f"{node.id} " for node in topology.numa)
    rows = "".join(f"{number} " for node in topology.numa for number in node.distances or ())
    return [
        f'  <distances2 type="NUMANode" nbobjs="{count}" kind="5" name="NUMALatency" indexing="os">',
        f'    <indexes length="{len(ids)}">{ids}</indexes>',
        f'    <u64values length="{len(rows)}">{rows}</u64values>',
        "  </distances2>",
    ]


def _render_core_kinds(topology: Topology) -> Iterator[str]:
    for rank, name in enumerate(("efficiency", "performance")):
        cpus = CpuSet.from_ids(cpu.id for cpu in topology.cpus if cpu.core_class == name)
        if cpus:
            yield f'  <cpukind cpuset="{_format_mask(cpus.bits)}" forced_efficiency="{rank}">'
            yield f'    <info name="CoreClass" value="{name}"/>'
            yield "  </cpukind>"
