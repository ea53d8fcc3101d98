"""The machine for lstopo: what hwloc demands holds on every machine, and what it says is the machine."""

from xml.etree import ElementTree as ET

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Cache, Cpu, NumaNode, Topology
from nodeagent.tools.export.hwloc_xml import render_hwloc_xml
from tests.support.hwloc_rules import checked, mask
from tests.views.topology.test_topology_text import SHAPES, machine


def sets(root: ET.Element, kind: str) -> list[int]:
    return sorted(mask(box.get("cpuset", "")) for box in root.iter("object") if box.get("type") == kind)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_machine(shape: tuple[int, int, int, int, int]) -> None:
    topology = machine(*shape)
    root = checked(render_hwloc_xml(topology))
    assert sets(root, "PU") == sorted(1 << cpu.id for cpu in topology.cpus)
    assert sets(root, "Core") == sorted(cpus.bits for cpus in topology.cores.values())
    assert sets(root, "Package") == sorted(cpus.bits for cpus in topology.sockets.values())
    assert sets(root, "L3Cache") == sorted(cpus.bits for cpus in topology.l3)
    nodes = {box.get("os_index"): box for box in root.iter("object") if box.get("type") == "NUMANode"}
    assert {int(number or -1): mask(box.get("cpuset", "")) for number, box in nodes.items()} == {
        number: cpus.bits for number, cpus in topology.nodes.items()
    }
    assert {box.get("local_memory") for box in nodes.values()} == {str(64 * 2**30)}
    assert {page.get("count") for page in root.iter("page_type")} == {"512"}
    assert len(root.findall("distances2")) == (len(topology.numa) > 1)


def test_offline_cpus_are_known_and_not_usable() -> None:
    (box,) = checked(render_hwloc_xml(machine(1, 1, 1, 2, 1))).findall("object")
    assert mask(box.get("complete_cpuset", "")) == 0b11 | 1 << 5000
    assert mask(box.get("cpuset", "")) == mask(box.get("allowed_cpuset", "")) == 0b11


def test_what_crosses_a_box_that_is_there_is_left_out() -> None:
    """hwloc knows trees only."""
    cpus = [Cpu(number, core=number, socket=number // 2, numa=number // 3) for number in range(6)]
    topology = Topology.of(cpus, [NumaNode(0, 1), NumaNode(1, 1)], l3=[CpuSet.parse("0-2"), CpuSet.parse("3-5")])
    root = checked(render_hwloc_xml(topology))
    assert sets(root, "L3Cache") == [0b000111, 0b111000]
    assert sets(root, "Package") == [0b000011, 0b110000]
    assert sets(root, "NUMANode") == [0b000111, 0b111000]


def test_memory_without_cpus_belongs_to_the_machine() -> None:
    topology = Topology.of([Cpu(0, core=0, socket=0, numa=0)], [NumaNode(0, 1024), NumaNode(7, 2048)])
    (box,) = checked(render_hwloc_xml(topology)).findall("object")
    assert [(child.get("os_index"), child.get("local_memory")) for child in box if child.get("type") == "NUMANode"] == [
        ("0", "1024"),
        ("7", "2048"),
    ]


def test_owners_and_core_classes_are_reported() -> None:
    cpus = [
        Cpu(number, core=number, socket=0, numa=0, core_class="efficiency" if number else "performance")
        for number in range(2)
    ]
    root = checked(render_hwloc_xml(Topology.of(cpus, [NumaNode(0, 0)]), {1: 'default/"web" app'}))
    (pu,) = (box for box in root.iter("object") if box.get("type") == "PU" and box.find("info") is not None)
    said = {info.get("name"): info.get("value") for info in pu.findall("info")}
    assert said["Owner"] == 'default/"web" app'
    assert (said["lstopoStyle"] or "").startswith("Background=#1f5fa8;Text=")
    kinds = {kind.get("forced_efficiency"): kind.get("cpuset") for kind in root.findall("cpukind")}
    assert kinds == {"0": "0x00000002", "1": "0x00000001"}


def test_dies_are_reported_where_there_are_several() -> None:
    cpus = [Cpu(number, core=number, socket=0, numa=0, die=number // 2) for number in range(4)]
    assert sets(checked(render_hwloc_xml(Topology.of(cpus, [NumaNode(0, 0)]))), "Die") == [0b0011, 0b1100]
    same = [Cpu(number, core=number, socket=0, numa=0, die=0) for number in range(4)]
    assert sets(checked(render_hwloc_xml(Topology.of(same, [NumaNode(0, 0)]))), "Die") == []


def test_caches_have_their_size_where_it_is_known() -> None:
    cpus = [Cpu(number, core=number, socket=0, numa=0, l3_bytes=(None, 2**25)[number]) for number in range(2)]
    topology = Topology.of(cpus, [NumaNode(0, 0)], l3=[CpuSet.of(0), CpuSet.of(1)])
    root = checked(render_hwloc_xml(topology))
    assert [box.get("cache_size") for box in root.iter("object") if box.get("type") == "L3Cache"] == ["0", "33554432"]


def test_caches_of_every_level_are_nested_as_hwloc_nests_them() -> None:
    cpus = [Cpu(number, core=number // 2 * 2, socket=0, numa=0) for number in range(4)]
    caches = [
        *(Cache(1, kind, CpuSet.parse(core), 2**15) for core in ("0-1", "2-3") for kind in ("instruction", "data")),
        *(Cache(2, "unified", CpuSet.parse(core)) for core in ("0-1", "2-3")),
        Cache(4, "unified", CpuSet.parse("0-3"), 2**27),
        Cache(9, "unified", CpuSet.parse("0-3"), 2**28),
    ]
    root = checked(render_hwloc_xml(Topology.of(cpus, [NumaNode(0, 0)], l3=[CpuSet.parse("0-3")], caches=caches)))
    kinds = [box.get("type") for box in root.iter("object") if mask(box.get("cpuset", "")) & 1]
    boxes = ["Machine", "NUMANode", "Package", "L4Cache", "L3Cache", "L2Cache", "L1Cache", "L1iCache", "Core", "PU"]
    assert kinds == boxes, "of level 9 hwloc knows none"
    said = {
        box.get("type"): [box.get(key) for key in ("depth", "cache_type", "cache_size")] for box in root.iter("object")
    }
    assert said["L1Cache"] == ["1", "1", "32768"]
    assert said["L1iCache"] == ["1", "2", "32768"]
    assert said["L2Cache"] == ["2", "0", "0"]
