"""Draws the machine as text: sockets, NUMA nodes, caches, cores with their threads, and who owns each CPU.

Legible without colour, within the width, from 2 CPUs to hundreds. Knows owners as labels only.
"""

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nodeagent.core.idset import CpuSet
from nodeagent.core.topology import NumaNode, Topology

_FIXED_MARKS = {"reserved": "#", "shared": "."}
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_MAX_LABEL = 44


@dataclass(frozen=True, slots=True)
class _Group:
    """Cores of one NUMA node that are drawn together."""

    die: int | None
    l3: int | None
    uncore: int | None
    core_class: str | None

    def title(self, *, with_die: bool, l3_nodes: Iterable[int]) -> str:
        others = ", ".join(map(str, l3_nodes))
        parts = [
            f"die {self.die}" if with_die else "",
            "no L3" if self.l3 is None else f"L3 #{self.l3}",
            f"shared with NUMA node {others}" if others else "",
            "" if self.uncore is None else f"uncore cache {self.uncore}",
            f"{self.core_class} cores" if self.core_class else "",
        ]
        return ", ".join(part for part in parts if part)


def render_topology(topology: Topology, owner: Mapping[int, str] | None = None, width: int = 80) -> str:
    """Draw the machine.

    Args:
        topology: the machine.
        owner: label by CPU: `reserved`, `shared`, or what holds it alone; a CPU without an entry has no mark.
        width: no line is longer, if it is at least 40.
    """
    marks = _marks(owner or {})
    lines = _wrapped("", _summary(topology), width)
    for socket, cpus in topology.sockets.items():
        lines += ["", f"socket {socket}"]
        for node in topology.numa:
            part = topology.nodes.get(node.id, CpuSet()) & cpus
            if part:
                lines += _wrapped("  ", _node_title(topology, node), width)
                lines += _groups(topology, node.id, part, _Cells(topology, owner or {}, marks), width)
    lines += _others(topology, width) + _distances(topology, width) + _legend(owner or {}, marks, width)
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Cells:
    """How CPUs of this machine are written in columns."""

    topology: Topology
    owner: Mapping[int, str]
    marks: Mapping[str, str]

    def core(self, cpus: Iterable[int]) -> str:
        digits = len(str(self.topology.cpus[-1].id)) if self.topology.cpus else 1
        mark_width = max((len(mark) for mark in self.marks.values()), default=0)
        return "[" + " ".join(f"{cpu:>{digits}}{self._mark(cpu):<{mark_width}}" for cpu in cpus) + "]"

    def _mark(self, cpu: int) -> str:
        return self.marks.get(self.owner.get(cpu, ""), "")


def _summary(topology: Topology) -> str:
    threads = _counted(len(topology.cpus), "CPU")
    parts = [
        f"{threads} in {_counted(len(topology.cores), 'core')}",
        _counted(len(topology.sockets), "socket"),
        _counted(len(topology.numa), "NUMA node"),
        _size(topology.memory_bytes),
        *_hugepages(topology.hugepages),
    ]
    return ", ".join(parts)


def _counted(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _size(size_bytes: int) -> str:
    power = max(0, min(len(_UNITS) - 1, (size_bytes.bit_length() - 1) // 10))
    tenths = size_bytes * 10 >> 10 * power
    return f"{tenths // 10}.{tenths % 10} {_UNITS[power]}" if power else f"{size_bytes} B"


def _hugepages(amounts: Iterable[tuple[str, int]]) -> list[str]:
    return [f"{name} {_size(amount_bytes)}" for name, amount_bytes in amounts if amount_bytes]


def _node_title(topology: Topology, node: NumaNode) -> str:
    cpus = topology.nodes.get(node.id, CpuSet())
    sockets = sum(not members.isdisjoint(cpus) for members in topology.sockets.values())
    spans = [f"spans {sockets} sockets"] if sockets > 1 else []
    return ", ".join([f"NUMA node {node.id}: {_size(node.memory_bytes)}", *_hugepages(node.hugepages), *spans])


def _groups(topology: Topology, node: int, part: CpuSet, cells: _Cells, width: int) -> list[str]:
    """One socket's part of one NUMA node: per group a title, then its cores."""
    l3_of = {cpu: index for index, group in enumerate(topology.l3) for cpu in group & part}
    cores: dict[_Group, dict[int, list[int]]] = {}
    for cpu in (topology.cpu[number] for number in part):
        group = _Group(cpu.die, l3_of.get(cpu.id), cpu.uncore, cpu.core_class)
        cores.setdefault(group, {}).setdefault(cpu.core, []).append(cpu.id)
    with_die = len({group.die for group in cores}) > 1
    lines = []
    for group, members in cores.items():
        l3_nodes = set() if group.l3 is None else set(topology.numa_of(topology.l3[group.l3])) - {node}
        lines += _wrapped("    ", group.title(with_die=with_die, l3_nodes=sorted(l3_nodes)), width)
        lines += _rows("      ", (cells.core(cpus) for cpus in members.values()), width)
    return lines


def _rows(indent: str, cores: Iterable[str], width: int) -> list[str]:
    """As many cores in a row as fit; a core that alone is too long is broken."""
    rows: list[str] = []
    row = indent
    for core in cores:
        if row != indent and len(row) + 1 + len(core) > width:
            rows.append(row)
            row = indent
        row += core if row == indent else f" {core}"
        if len(row) > width:
            *broken, row = textwrap.wrap(row, width, subsequent_indent=f"{indent} ")
            rows += broken
    return [*rows, row]


def _others(topology: Topology, width: int) -> list[str]:
    """What has no place in the drawing."""
    lines = []
    for node in topology.numa:
        if node.id not in topology.nodes:
            lines += _wrapped("", f"{_node_title(topology, node)}, no CPUs", width)
    if topology.offline:
        lines += _wrapped("", f"offline CPUs: {topology.offline}", width)
    if topology.isolated:
        lines += _wrapped("", f"isolated CPUs (isolcpus): {topology.isolated}", width)
    if topology.nohz_full:
        lines += _wrapped("", f"tickless CPUs (nohz_full): {topology.nohz_full}", width)
    if topology.skipped:
        lines += _wrapped("", f"unused CPUs, of no known core or NUMA node: {topology.skipped}", width)
    return ["", *lines] if lines else []


def _distances(topology: Topology, width: int) -> list[str]:
    known = [node for node in topology.numa if node.distances]
    if len(topology.numa) < 2 or not known:
        return []
    entries = [number for node in known for number in node.distances or ()]
    label = max(len(str(node.id)) for node in topology.numa)
    column = max(len(str(number)) for number in [*entries, *topology.node_ids])
    columns = max(len(node.distances or ()) for node in known)
    if 2 + label + columns * (column + 2) > width:
        return ["", "distances between NUMA nodes: too many for this width, see -o json"]
    lines = ["", "distances between NUMA nodes"]
    if columns == len(topology.numa):
        lines.append("  " + " " * label + "".join(f"  {node:>{column}}" for node in topology.node_ids))
    rows = ((node.id, "".join(f"  {number:>{column}}" for number in node.distances or ())) for node in known)
    return [*lines, *(f"  {node:>{label}}{row}" for node, row in rows)]


def _marks(owner: Mapping[int, str]) -> dict[str, str]:
    """A mark per label: fixed ones, then letters in order of the labels' lowest CPUs."""
    labels = list(dict.fromkeys(owner[cpu] for cpu in sorted(owner)))
    others = [label for label in labels if label not in _FIXED_MARKS]
    length = 1
    while len(others) > len(_LETTERS) ** length:
        length += 1
    return {label: mark for label, mark in _FIXED_MARKS.items() if label in labels} | {
        label: _letters(index, length) for index, label in enumerate(others)
    }


def _letters(index: int, length: int) -> str:
    letters = [_LETTERS[index // len(_LETTERS) ** place % len(_LETTERS)] for place in reversed(range(length))]
    return "".join(letters).capitalize()


def _legend(owner: Mapping[int, str], marks: Mapping[str, str], width: int) -> list[str]:
    if not marks:
        return []
    lines = ["", "owners"]
    label_width = min(_MAX_LABEL, max(map(len, marks)))
    mark_width = max(map(len, marks.values()))
    for label, mark in marks.items():
        cpus = CpuSet.from_ids(cpu for cpu, name in owner.items() if name == label)
        short = label if len(label) <= label_width else label[: label_width - 1] + "…"
        lines += _wrapped(f"  {mark:<{mark_width}}  {short:<{label_width}}  ", str(cpus), width)
    return lines


def _wrapped(prefix: str, text: str, width: int) -> list[str]:
    """The text after the prefix, broken after commas, all further lines indented below the text."""
    indent = min(len(prefix), width // 2) if prefix.strip() else len(prefix) + 2
    lines = [prefix]
    for piece in re.findall(r"[^,]*(?:, ?|$)", text):
        start = lines[-1] in (prefix, " " * indent)
        if not start and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append(" " * indent)
        lines[-1] += piece
    return [line.rstrip() for line in lines]
