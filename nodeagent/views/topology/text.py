"""Drawing of the machine as text: sockets, NUMA nodes, caches, cores with their threads, and the owner of each CPU.

The text is readable without colour, and no line is longer than the width, for machines with 2 to hundreds of CPUs. Owners are passed to
this module only as labels.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Topology
from nodeagent.views.topology.parts import (
    NO_DEVICES,
    RESERVED,
    SHARED,
    DeviceSection,
    OtherCaches,
    assign_marks,
    format_node_title,
    format_summary,
    group_cores,
    list_cpus_not_drawn,
    list_nodes_without_cpus,
    number_pods,
)
from nodeagent.views.wording.columns import format_rows

_SGR = {RESERVED: "33", SHARED: "32"}
_SGR_OF_PODS = ("1;36", "1;35", "1;34", "1;31", "1;96", "1;95", "1;94", "1;91")
"""Colours of pods as ECMA-48 codes, which are reused if there are more pods. Owners with the same colour still have different marks."""

Paint = Callable[[str, str], str]
"""Function that colours a text according to a label, or returns the text unchanged."""


def make_terminal_paint(owner: Mapping[int, str]) -> Paint:
    """Return a function that colours a text for the terminal, with the colour of the given label's owner."""
    numbers = number_pods(owner)
    codes = _SGR | {label: _SGR_OF_PODS[number % len(_SGR_OF_PODS)] for label, number in numbers.items()}

    def paint(label: str, text: str) -> str:
        return f"\x1b[{codes[label]}m{text}\x1b[0m" if label in codes and text else text

    return paint


def render_topology(
    topology: Topology,
    owner: Mapping[int, str] | None = None,
    width: int = 80,
    paint: Paint = lambda _, text: text,
    devices: Sequence[DeviceSection] | None = None,
) -> str:
    """Draw the machine as text.

    Args:
        topology: the machine.
        owner: the label of each CPU: `reserved`, `shared`, or the name of the exclusive owner. A CPU without a label has no mark.
        width: the limit on a line's length, at least 40.
        paint: the function that colours CPUs and owners.
        devices: the devices to draw. None means that devices aren't drawn.
    """
    owner = owner or {}
    cells = _CpuFormatter(topology, owner, assign_marks(owner), paint)
    caches = OtherCaches(topology)
    lines = [line for text in (format_summary(topology), caches.common_text) if text for line in _wrap("", text, width)]
    for socket, cpus in topology.sockets.items():
        lines += ["", f"socket {socket}"]
        for node in topology.numa:
            part = topology.nodes.get(node.id, CpuSet()) & cpus
            if part:
                lines += _wrap("  ", format_node_title(topology, node), width)
                for group in group_cores(topology, node.id, part, caches):
                    lines += _wrap("    ", group.title, width)
                    lines += _format_rows("      ", (cells.format_core(cpus) for cpus in group.cores), width)
    offline = [f"offline CPUs: {topology.offline}"] if topology.offline else []
    remarks = [*list_nodes_without_cpus(topology), *offline, *list_cpus_not_drawn(topology)]
    lines += [""] if remarks else []
    lines += [line for remark in remarks for line in _wrap("", remark, width)]
    lines += _format_distances(topology, width) + _format_devices(devices, width) + _format_legend(cells, width)
    return "\n".join(lines) + "\n"


class _ColouredWord(Struct, frozen=True):
    text: str
    """Text including its colour codes."""
    width: int


class _CpuFormatter(Struct, frozen=True):
    """Formatter that makes the CPUs of the drawing equally wide, so that they form columns."""

    topology: Topology
    owner: Mapping[int, str]
    marks: Mapping[str, str]
    paint: Paint

    def format_core(self, cpus: tuple[int, ...]) -> tuple[_ColouredWord, ...]:
        """Format a core as words in brackets, one word per CPU."""
        digits = len(str(self.topology.cpus[-1].id))
        mark_width = max((len(mark) for mark in self.marks.values()), default=0)
        words = []
        for place, cpu in enumerate(cpus):
            label = self.owner.get(cpu, "")
            inner = f"{cpu:>{digits}}{self.marks.get(label, ''):<{mark_width}}"
            before, after = "[" if place == 0 else "", "]" if place == len(cpus) - 1 else ""
            words.append(_ColouredWord(f"{before}{self.paint(label, inner)}{after}", len(before + inner + after)))
        return tuple(words)


def _format_rows(indent: str, cores: Iterable[tuple[_ColouredWord, ...]], width: int) -> list[str]:
    """Fill rows with as many cores as fit. A core that is wider than a row continues in the next row."""
    rows = [indent]
    used = len(indent)
    for core in cores:
        if used > len(indent) and used + sum(1 + word.width for word in core) > width:
            rows.append(indent)
            used = len(indent)
        for word in core:
            if used > len(indent) and used + 1 + word.width > width:
                rows.append(f"{indent} ")
                used = len(indent) + 1
            gap = "" if rows[-1].isspace() else " "
            rows[-1] += gap + word.text
            used += len(gap) + word.width
    return rows


def _format_distances(topology: Topology, width: int) -> list[str]:
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


def _format_devices(sections: Sequence[DeviceSection] | None, width: int) -> list[str]:
    if sections is None:
        return []
    lines = [] if sections else ["", NO_DEVICES]
    # The rows of all sections are formatted together, so that their columns are aligned.
    laid = iter(format_rows([row for section in sections for row in section.rows], width - 2))
    for section in sections:
        lines += ["", section.title, *(f"  {line}" for _ in section.rows for line in next(laid))]
    return lines


def _format_legend(cells: _CpuFormatter, width: int) -> list[str]:
    if not cells.marks:
        return []
    lines = ["", "owners"]
    mark_width = max(map(len, cells.marks.values()))
    cpus = {label: CpuSet.from_ids(cpu for cpu, name in cells.owner.items() if name == label) for label in cells.marks}
    rows = [(f"{mark:<{mark_width}}  {label}", str(cpus[label])) for label, mark in cells.marks.items()]
    for label, (first, *rest) in zip(cells.marks, format_rows(rows, width - 2), strict=True):
        name = first[: first.rindex("  ")].rstrip()
        lines += [f"  {cells.paint(label, name)}{first[len(name) :]}", *(f"  {line}" for line in rest)]
    return lines


def _wrap(prefix: str, text: str, width: int) -> list[str]:
    """Wrap a text after commas. Continuation lines are indented so that they start below the text, not below the prefix."""
    indent = min(len(prefix), width // 2) if prefix.strip() else len(prefix) + 2
    lines = [prefix]
    for piece in re.findall(r"[^,]*(?:, ?|$)", text):
        start = lines[-1] in (prefix, " " * indent)
        if not start and len(lines[-1]) + len(piece.rstrip()) > width:
            lines.append(" " * indent)
        lines[-1] += piece
    return [line.rstrip() for line in lines]
