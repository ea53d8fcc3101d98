"""The picture: every CPU once, with its owner's colour; nothing overlaps or leaves its box; every text is legible."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.tools.export.svg import FILLS, INK, PAPER, POD_FILLS, render_svg
from tests.views.topology.test_topology_text import SHAPES, machine

GOLDEN = Path(__file__).parents[2] / "golden" / "topology.svg"
SVG = "{http://www.w3.org/2000/svg}"
OWNERS = {
    0: "reserved",
    4: "reserved",
    1: "default/web main",
    5: "default/web side",
    2: "shared",
    6: "shared",
    3: "x/y z",
}

Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def absolute(element: ET.Element, x: float = 0, y: float = 0) -> Iterator[tuple[ET.Element, float, float]]:
    """Every element with its group's place on the page."""
    place = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", element.get("transform", ""))
    if place:
        x, y = x + float(place[1]), y + float(place[2])
    yield element, x, y
    for child in element:
        if child.tag != f"{SVG}defs":
            yield from absolute(child, x, y)


def cells(root: ET.Element) -> dict[int, tuple[str, str, Box]]:
    """(Owner, fill, box) of each CPU."""
    found: dict[int, tuple[str, str, Box]] = {}
    for element, x, y in absolute(root):
        title = element.findtext(f"{SVG}title", "")
        said = re.fullmatch(r"CPU (\d+): (.*)", title)
        if said and element.tag == f"{SVG}g":
            rect = element.find(f"{SVG}rect")
            assert rect is not None
            assert int(said[1]) not in found
            box = (x, y, x + float(rect.get("width", "0")), y + float(rect.get("height", "0")))
            found[int(said[1])] = (said[2], rect.get("fill", ""), box)
    return found


def boxes(root: ET.Element) -> list[Box]:
    """The frames: sockets, nodes, caches, cores."""
    return [
        (x, y, x + float(element.get("width", "0")), y + float(element.get("height", "0")))
        for element, x, y in absolute(root)
        if element.tag == f"{SVG}rect" and element.get("x") == "0.5"
    ]


def apart_or_nested(one: Box, other: Box) -> bool:
    apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    inside = all((a >= b) for a, b in zip(one[:2], other[:2], strict=True)) and all(
        a <= b for a, b in zip(one[2:], other[2:], strict=True)
    )
    around = all((a <= b) for a, b in zip(one[:2], other[:2], strict=True)) and all(
        a >= b for a, b in zip(one[2:], other[2:], strict=True)
    )
    return apart or inside or around


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_cpu_once_in_its_place(shape: tuple[int, int, int, int, int]) -> None:
    topology = machine(*shape)
    owner = {cpu.id: f"default/pod-{cpu.core % 7} app" for cpu in topology.cpus if cpu.core % 3}
    root = ET.fromstring(render_svg(topology, owner, "a node"))
    drawn = cells(root)
    assert drawn.keys() == {cpu.id for cpu in topology.cpus} | {5000}
    assert {cpu: said for cpu, (said, _, _) in drawn.items()} == {
        **{cpu.id: owner.get(cpu.id, "not owned") for cpu in topology.cpus},
        5000: "offline",
    }
    frames, width, height = boxes(root), float(root.get("width", "0")), float(root.get("height", "0"))
    kept = [*frames, *(box for _, _, box in drawn.values())]
    assert all(0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height for box in kept)
    assert width <= 1500
    if len(kept) < 600:
        assert [(a, b) for i, a in enumerate(kept) for b in kept[:i] if not apart_or_nested(a, b)] == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_texts_stay_on_the_page(shape: tuple[int, int, int, int, int]) -> None:
    topology = machine(*shape)
    owner = {cpu.id: f"default/a-pod-with-quite-a-long-name-{cpu.id % 5} container" for cpu in topology.cpus}
    root = ET.fromstring(render_svg(topology, owner))
    for element, x, y in absolute(root):
        if element.tag == f"{SVG}text" and element.get("text-anchor") is None:
            # 0.55 of its size is what a character of a common sans-serif takes on average
            width = len("".join(element.itertext())) * float(element.get("font-size", "0")) * 0.55
            assert x + width <= float(root.get("width", "0"))
            assert y + float(element.get("y", "0")) <= float(root.get("height", "0"))


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_every_text_has_the_contrast_that_wcag_asks_for() -> None:
    on_dark = [*POD_FILLS, FILLS["reserved"]]
    assert [fill for fill in on_dark if contrast(fill, PAPER) < 4.5] == []
    assert [fill for fill in FILLS.values() if fill not in on_dark and contrast(fill, INK) < 4.5] == []


def test_containers_of_one_pod_have_its_colour_and_their_own_letter() -> None:
    text = render_svg(machine(2, 1, 2, 1, 2), OWNERS)
    drawn = cells(ET.fromstring(text))
    assert drawn[1][1] == drawn[5][1] == POD_FILLS[0]
    assert drawn[3][1] == POD_FILLS[1]
    assert drawn[0][1] == FILLS["reserved"]
    assert drawn[7][:2] == ("not owned", FILLS["not owned"])
    assert drawn[5000][1] == "url(#hatch)"
    legend = re.findall(r"<text[^>]*>([^<]*: [\d,-]+)</text>", text)
    assert legend == [
        "reserved: 0,4",
        "shared: 2,6",
        "default/web main: 1",
        "x/y z: 3",
        "default/web side: 5",
        "offline: 5000",
    ]


def test_a_small_machine_is_drawn_as_it_was_looked_at() -> None:
    assert render_svg(machine(2, 1, 2, 1, 2), OWNERS, "a node") == GOLDEN.read_text()


def test_what_is_not_there_is_not_drawn() -> None:
    bare = Topology.of([Cpu(0, core=0, socket=0, numa=0)], [NumaNode(0, 2**30)])
    text = render_svg(bare)
    assert "Owners" not in text
    assert "Distances" not in text


def test_nodes_without_cpus_isolated_and_efficient_cores_are_shown() -> None:
    cpus = [
        Cpu(number, core=number, socket=0, numa=0, core_class="efficiency" if number else "performance")
        for number in range(2)
    ]
    topology = Topology.of(cpus, [NumaNode(0, 2**30), NumaNode(3, 2**40)], isolated=CpuSet.of(1))
    text = render_svg(topology)
    assert "NUMA node 3: 1.0 TiB, no CPUs" in text
    assert "isolated CPUs (isolcpus): 1" in text
    assert text.count("stroke-dasharray") == 1


def test_names_cannot_leave_their_text() -> None:
    root = ET.fromstring(render_svg(machine(1, 1, 1, 2, 1), {0: "<script>&' x"}, '"<b>'))
    assert cells(root)[0][0] == "<script>&' x"
    assert root.find(f".//{SVG}script") is None
