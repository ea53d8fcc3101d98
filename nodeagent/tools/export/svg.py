"""Drawing of the machine as an SVG picture: sockets, NUMA nodes, caches, cores, threads, distances, and the owner of each CPU.

The size of every box is computed before the box is placed, so that nothing overlaps. The same input gives the same picture.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.views.topology.parts import (
    FREE,
    NO_DEVICES,
    RESERVED,
    SHARED,
    CoreGroup,
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

OFFLINE = "offline"
NOT_OWNED = "not owned"
INK, PAPER = "#1b2733", "#ffffff"
FILLS = {RESERVED: "#59636e", SHARED: "#cfe8d5", OFFLINE: "#ffffff", FREE: "#f6f8fa", NOT_OWNED: "#e6ebf1"}
POD_FILLS = (
    "#1f5fa8", "#b4480f", "#7a3e9d", "#00695c", "#a3242f", "#6b5a00", "#3f4aa0", "#a01f5c", "#2f6b1f", "#5d4037"
)  # fmt: skip
"""Colours of pods, assigned one after the other. White text is legible on each colour. Letters distinguish pods with the same colour."""

_ON_LIGHT = frozenset({SHARED, OFFLINE, FREE, NOT_OWNED})
_WIDTH = 1180
_CELL_HEIGHT = 24
_PAD, _GAP = 8, 6
_TITLE, _TEXT, _SMALL = 14, 12, 11
_CHAR = 0.6
"""Width of a character relative to the font size, rounded up."""
_NARROWEST = 150
"""Minimum width of a box, so that its title fits."""
_MAX_LABEL = 60
_MAX_MATRIX = 24


class _Box(Struct, frozen=True):
    width: float
    height: float
    body: str
    """SVG elements of the contents, relative to the box's upper left corner."""


_NOTHING = _Box(0, 0, "")


def render_svg(
    topology: Topology,
    owner: Mapping[int, str] | None = None,
    title: str = "",
    devices: Sequence[DeviceSection] | None = None,
) -> str:
    """Draw the machine as an SVG picture.

    Args:
        topology: the machine.
        owner: label by CPU: `reserved`, `shared`, or the pod that has the CPU exclusively. None means that the owners are unknown.
        title: title of the picture, such as the node's name.
        devices: devices to draw below the CPUs. None means that no devices were requested.
    """
    painter = _Painter(topology, owner or {})
    heading = [_draw_line(title, 20, bold=True)] if title else []
    parts = [
        *heading,
        *_draw_paragraph(format_summary(topology), _TITLE, _WIDTH),
        *_draw_paragraph(painter.caches.common_text, _TEXT, _WIDTH),
        painter.draw_machine(),
        painter.draw_others(),
        *(line for note in list_cpus_not_drawn(topology) for line in _draw_paragraph(note, _TEXT, _WIDTH)),
        *_draw_devices(devices),
        _place_in_rows(
            [box for box in (painter.draw_legend(), painter.draw_distances()) if box is not None], _WIDTH, gap=32
        ),
    ]
    page = _place_in_column([part for part in parts if part.height], gap=12)
    width, height = math.ceil(page.width + 32), math.ceil(page.height + 32)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" fill="{INK}">\n'
        f"<title>{escape(title or 'Topology')}: {escape(format_summary(topology))}</title>\n"
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#ffffff"/><rect width="2" height="6" fill="#d3d9e0"/></pattern></defs>\n'
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>\n'
        f"{_place(page, 16, 16)}\n</svg>\n"
    )


def _draw_devices(sections: Sequence[DeviceSection] | None) -> list[_Box]:
    if sections is None:
        return []
    boxes = []
    for section in sections:
        rows = [
            line
            for row in section.rows
            for line in _draw_paragraph(" · ".join(filter(None, row)), _TEXT, _WIDTH - 2 * _PAD)
        ]
        boxes.append(_frame_box(section.title, _place_in_column(rows, gap=2), _Border("#f5f2fa", "#a594c4")))
    return boxes or _draw_paragraph(NO_DEVICES, _TEXT, _WIDTH)


class _Painter:
    def __init__(self, topology: Topology, owner: Mapping[int, str]) -> None:
        self.topology = topology
        self.owner = owner
        self.marks = assign_marks(owner)
        self.caches = OtherCaches(topology)
        numbers = number_pods(owner)
        self.fills = FILLS | {label: POD_FILLS[number % len(POD_FILLS)] for label, number in numbers.items()}
        digits = max((len(str(cpu)) for cpu in topology.online | topology.offline), default=1)
        letters = max((len(self.find_letter(label)) for label in self.marks), default=0)
        self.cell_width = max(30, (digits + letters) * _SMALL * 0.68 + 10)

    def draw_machine(self) -> _Box:
        sockets = self.topology.sockets
        largest = max((len(cpus) for cpus in sockets.values()), default=1)
        columns = max(1, min(len(sockets), 4, 144 // largest))
        width = (_WIDTH - 2 * _GAP * (columns - 1)) / columns
        boxes = _draw_equally_large(
            lambda min_box: [self.draw_socket(socket, cpus, width, min_box) for socket, cpus in sockets.items()]
        )
        return _place_in_rows(boxes, _WIDTH, gap=2 * _GAP)

    def draw_others(self) -> _Box:
        """Draw NUMA nodes without CPUs, and offline CPUs."""
        blank = _Box(0, 0, "")
        boxes = [
            _frame_box(title, blank, _Border("#f3f8fd", "#8fb3d9")) for title in list_nodes_without_cpus(self.topology)
        ]
        if self.topology.offline:
            cells = [self.draw_cell(cpu, OFFLINE) for cpu in self.topology.offline]
            boxes.append(
                _frame_box("offline CPUs", _place_in_rows(cells, _WIDTH - 2 * _PAD, gap=2), _Border(PAPER, "#9aa5b1"))
            )
        return _place_in_rows(boxes, _WIDTH, gap=2 * _GAP)

    def draw_socket(self, socket: int, cpus: CpuSet, width: float, min_box: _Box) -> _Box:
        inner = width - 2 * _PAD
        parts = [(n, part) for n in self.topology.numa if (part := self.topology.nodes.get(n.id, CpuSet()) & cpus)]
        columns = max(1, min(len(parts), int(inner // 250)))
        column = (inner - _GAP * (columns - 1)) / columns
        nodes = _draw_equally_large(
            lambda min_box: [self.draw_node(node, part, column, min_box) for node, part in parts]
        )
        frame = _Border("#fbfbfc", "#7b8794", bold=True)
        return _frame_box(f"Socket {socket}", _place_in_rows(nodes, inner, gap=_GAP), frame, min_box)

    def draw_node(self, node: NumaNode, part: CpuSet, width: float, min_box: _Box) -> _Box:
        inner = width - 2 * _PAD
        groups = [
            self.draw_group(group, inner - 2 * _PAD) for group in group_cores(self.topology, node.id, part, self.caches)
        ]
        frame = _Border("#f3f8fd", "#8fb3d9")
        return _frame_box(
            format_node_title(self.topology, node), _place_in_rows(groups, inner, gap=_GAP), frame, min_box
        )

    def draw_group(self, group: CoreGroup, width: float) -> _Box:
        cores = [self.draw_core(cpus) for cpus in group.cores]
        each = max(core.width for core in cores)
        fitting = max(1, int((width + _GAP) // (each + _GAP)))
        columns = min(fitting, len(cores) if len(cores) <= 4 else max(4, math.ceil(math.sqrt(2 * len(cores)))))
        return _frame_box(
            group.title, _place_in_rows(cores, columns * (each + _GAP), gap=_GAP), _Border("#fff9ec", "#dcc48e")
        )

    def draw_core(self, cpus: Sequence[int]) -> _Box:
        cells = [self.draw_cell(cpu, self.owner.get(cpu, NOT_OWNED)) for cpu in cpus]
        columns = 1 if len(cells) <= 2 else 2 if len(cells) <= 8 else 8
        inside = _place_in_rows(cells, columns * (self.cell_width + 2), gap=2)
        classes = {self.topology.cpu[cpu].core_class for cpu in cpus}
        dash = "4 2" if classes == {"efficiency"} else ""
        return _draw_border(inside, 3, fill="#ffffff", stroke="#8a94a0", radius=4, dash=dash)

    def draw_cell(self, cpu: int, label: str) -> _Box:
        ink = INK if label in _ON_LIGHT else PAPER
        letter = self.find_letter(label)
        text = f'{cpu}<tspan font-weight="bold" dx="2">{letter}</tspan>' if letter else str(cpu)
        middle = _format_number(self.cell_width / 2)
        return _Box(
            self.cell_width,
            _CELL_HEIGHT,
            f"<g><title>CPU {cpu}: {escape(label)}</title>{self.draw_swatch(label, self.cell_width, _CELL_HEIGHT)}"
            f'<text x="{middle}" y="16" font-size="{_SMALL}" text-anchor="middle" fill="{ink}">{text}</text></g>',
        )

    def find_letter(self, label: str) -> str:
        return mark if (mark := self.marks.get(label, "")).isalpha() else ""

    def draw_swatch(self, label: str, width: float, height: float) -> str:
        fill = "url(#hatch)" if label == OFFLINE else self.fills[label]
        edge = ' stroke="#9aa5b1" stroke-width="0.5"' if label in _ON_LIGHT else ""
        return f'<rect width="{_format_number(width)}" height="{_format_number(height)}" rx="3" fill="{fill}"{edge}/>'

    def draw_legend(self) -> _Box | None:
        labels = [*self.marks, *([OFFLINE] if self.topology.offline else [])]
        if not self.marks and not self.topology.offline:
            return None
        rows = []
        for label in labels:
            cpus = CpuSet.from_ids(cpu for cpu, name in self.owner.items() if name == label)
            cpus = self.topology.offline if label == OFFLINE else cpus
            swatch = self.draw_swatch(label, 28, 18) + (
                f'<text x="14" y="13" font-size="{_SMALL}" font-weight="bold" text-anchor="middle" '
                f'fill="{PAPER}">{self.find_letter(label)}</text>'
            )
            short = label if len(label) <= _MAX_LABEL else label[: _MAX_LABEL - 1] + "…"
            said = _place_in_column(_draw_paragraph(f"{short}: {cpus}", _TEXT, 520), gap=0)
            rows.append(_Box(36 + said.width, max(20, said.height), swatch + _place(said, 36, 1)))
        return _place_in_column([_draw_line("Owners", _TITLE, bold=True), *rows], gap=4)

    def draw_distances(self) -> _Box | None:
        known = [node for node in self.topology.numa if node.distances]
        ids = list(self.topology.node_ids)
        if len(ids) < 2 or not known or any(len(node.distances or ()) != len(ids) for node in known):
            return None
        heading = _draw_line("Distances between NUMA nodes", _TITLE, bold=True)
        if len(ids) > _MAX_MATRIX:
            return _place_in_column(
                [heading, _draw_line(f"{len(ids)} nodes: too many to draw, see -o json", _TEXT)], gap=4
            )
        farthest = max(number for node in known for number in node.distances or ())
        nearest = min(number for node in known for number in node.distances or ())
        cells = [_draw_matrix_text(column + 1, 0, str(node), bold=True) for column, node in enumerate(ids)]
        near, far = (222, 240, 226), (246, 205, 178)  # both colours are light enough for dark text
        for row, node in enumerate(known, 1):
            cells.append(_draw_matrix_text(0, row, str(node.id), bold=True))
            for column, number in enumerate(node.distances or (), 1):
                share = (number - nearest) / max(1, farthest - nearest)
                fill = "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(near, far, strict=True))
                cells.append(f'<rect x="{column * 34}" y="{row * 22}" width="32" height="20" rx="2" fill="#{fill}"/>')
                cells.append(_draw_matrix_text(column, row, str(number)))
        return _place_in_column([heading, _Box((len(ids) + 1) * 34, (len(known) + 1) * 22, "".join(cells))], gap=4)


def _draw_matrix_text(column: int, row: int, text: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{column * 34 + 16}" y="{row * 22 + 14}" font-size="{_SMALL}" text-anchor="middle"{weight}>{text}</text>'


class _Border(Struct, frozen=True):
    fill: str
    stroke: str
    bold: bool = False


def _frame_box(title: str, inside: _Box, frame: _Border, min_box: _Box = _NOTHING) -> _Box:
    """Frame a box with a title above its contents. The frame is at least as large as `min_box`."""
    room = max(inside.width, min_box.width - 2 * _PAD, _NARROWEST if inside.width else _WIDTH)
    lines = _draw_paragraph(title, _TITLE if frame.bold else _SMALL, room, bold=frame.bold)
    content = _place_in_column([*lines, *([inside] if inside.height else [])], gap=4)
    width, height = max(content.width, min_box.width - 2 * _PAD), max(content.height, min_box.height - 2 * _PAD)
    return _draw_border(_Box(width, height, content.body), _PAD, fill=frame.fill, stroke=frame.stroke, radius=6)


def _draw_equally_large(drawn: Callable[[_Box], list[_Box]]) -> list[_Box]:
    """Draw boxes in equal size. The first drawing finds the size of the largest box, and the second draws every box in this size."""
    boxes = drawn(_Box(0, 0, ""))
    return drawn(_Box(max(box.width for box in boxes), max(box.height for box in boxes), "")) if boxes else []


def _draw_border(inside: _Box, pad: float, *, fill: str, stroke: str, radius: int, dash: str = "") -> _Box:
    width, height = inside.width + 2 * pad, inside.height + 2 * pad
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    frame = (
        f'<rect x="0.5" y="0.5" width="{_format_number(width - 1)}" height="{_format_number(height - 1)}" rx="{radius}" '
        f'fill="{fill}" stroke="{stroke}"{dashes}/>'
    )
    return _Box(width, height, frame + _place(inside, pad, pad))


def _place_in_rows(boxes: Sequence[_Box], width: float, *, gap: float) -> _Box:
    """Place boxes side by side, in as many rows as necessary."""
    x = y = row_height = widest = 0.0
    body = []
    for box in boxes:
        if x and x + box.width > width + 0.01:
            x, y, row_height = 0.0, y + row_height + gap, 0.0
        body.append(_place(box, x, y))
        widest = max(widest, x + box.width)
        x += box.width + gap
        row_height = max(row_height, box.height)
    return _Box(widest, y + row_height, "".join(body))


def _place_in_column(boxes: Sequence[_Box], *, gap: float) -> _Box:
    y = 0.0
    body = []
    for box in boxes:
        body.append(_place(box, 0, y))
        y += box.height + gap
    return _Box(max((box.width for box in boxes), default=0), max(0.0, y - gap), "".join(body))


def _draw_paragraph(text: str, size: int, width: float, *, bold: bool = False) -> list[_Box]:
    """Break a text into lines. Lines break after blanks, and in long lists of CPUs also after commas."""
    room = max(8, int(width / (size * _CHAR)))
    lines = [""]
    for word in re.findall(r"[^ ,]*(?:, ?| |$)", text):
        if lines[-1] and len(lines[-1]) + len(word.rstrip()) > room:
            lines.append("")
        lines[-1] += word
    return [_draw_line(line.strip(), size, bold=bold) for line in lines if line.strip()]


def _draw_line(text: str, size: int, *, bold: bool = False) -> _Box:
    weight = ' font-weight="bold"' if bold else ""
    body = f'<text y="{_format_number(size * 1.05)}" font-size="{size}"{weight}>{escape(text)}</text>'
    return _Box(len(text) * size * _CHAR * (1.08 if bold else 1), size * 1.35, body)


def _place(box: _Box, x: float, y: float) -> str:
    if not box.body:
        return ""
    return (
        f'<g transform="translate({_format_number(x)} {_format_number(y)})">{box.body}</g>\n'
        if x or y
        else f"<g>{box.body}</g>\n"
    )


def _format_number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
