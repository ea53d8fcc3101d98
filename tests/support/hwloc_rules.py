"""What hwloc demands of its XML, so that a test needs no hwloc: the structure of hwloc2.dtd, and the order and nesting of its checks."""

import re
from xml.etree import ElementTree as ET

CHILDREN = {
    "topology": ("object", "distances2", "distances2hetero", "support", "memattr", "cpukind", "info"),
    "object": ("page_type", "info", "userdata", "object"),
    "distances2": ("indexes", "u64values"),
    "cpukind": ("info",),
    "page_type": (),
    "info": (),
    "indexes": (),
    "u64values": (),
}
"""Elements that may be inside, in their order."""
_SETS = {"cpuset", "complete_cpuset", "nodeset", "complete_nodeset"}
ATTRIBUTES = {
    "topology": ({"version"}, set()),
    "object": (
        {"type", "gp_index", *_SETS},
        {
            "os_index",
            "allowed_cpuset",
            "allowed_nodeset",
            "local_memory",
            "kind",
            "subkind",
            "depth",
            "cache_type",
            "cache_size",
        },
    ),
    "distances2": ({"type", "nbobjs", "kind", "indexing"}, {"name"}),
    "cpukind": ({"cpuset"}, {"forced_efficiency"}),
    "page_type": ({"size", "count"}, set()),
    "info": ({"name", "value"}, set()),
    "indexes": ({"length"}, set()),
    "u64values": ({"length"}, set()),
}
"""What must be there, and what may."""
ORDER = (
    "Machine",
    "Group",
    "Package",
    "Die",
    "L5Cache",
    "L4Cache",
    "L3Cache",
    "L2Cache",
    "L1Cache",
    "L1iCache",
    "Core",
    "PU",
)
"""Of boxes with the same CPUs, an earlier kind holds a later one."""
KINDS = {*ORDER, "NUMANode"}


def mask(text: str) -> int:
    assert re.fullmatch(r"0x[0-9a-f]{8}(,0x[0-9a-f]{8})*", text), text
    return int(text.replace("0x", "").replace(",", ""), 16)


def checked(text: str) -> ET.Element:
    """Fail if hwloc would complain."""
    assert '<!DOCTYPE topology SYSTEM "hwloc2.dtd">' in text
    root = ET.fromstring(text)
    assert (root.tag, root.get("version")) == ("topology", "2.0")
    for element in root.iter():
        _in_order(element)
        needed, allowed = ATTRIBUTES[element.tag]
        assert needed <= set(element.keys()) <= needed | allowed, (element.tag, element.attrib)
    machines = root.findall("object")
    assert [machine.get("type") for machine in machines] == ["Machine"]
    numbers = [element.get("gp_index") for element in root.iter("object")]
    assert len(numbers) == len(set(numbers))
    _nested(machines[0])
    for distances in root.findall("distances2"):
        count = int(distances.get("nbobjs", "0"))
        for name, values in (("indexes", count), ("u64values", count * count)):
            (listed,) = distances.findall(name)
            assert len((listed.text or "").split()) == values
            assert len(listed.text or "") == int(listed.get("length", "0"))
    return root


def _in_order(element: ET.Element) -> None:
    places = [CHILDREN[element.tag].index(child.tag) for child in element]
    assert places == sorted(places), [child.tag for child in element]


def _nested(box: ET.Element) -> None:
    """Check that children are disjoint parts in ascending order, and that what is local to a box is known around it."""
    assert box.get("type") in KINDS
    cpus, nodes = mask(box.get("cpuset", "")), mask(box.get("nodeset", ""))
    assert cpus & ~mask(box.get("complete_cpuset", "")) == 0
    normal = [child for child in box.findall("object") if child.get("type") != "NUMANode"]
    memory = [child for child in box.findall("object") if child.get("type") == "NUMANode"]
    seen, lowest = 0, -1
    for child in normal:
        part = mask(child.get("cpuset", ""))
        assert part
        assert part & ~cpus == 0
        assert part & seen == 0
        assert (part & -part) > lowest
        seen, lowest = seen | part, part & -part
        assert mask(child.get("nodeset", "")) & ~nodes == 0
        if part == cpus:
            assert ORDER.index(box.get("type", "")) < ORDER.index(child.get("type", ""))
        _nested(child)
    assert seen == (cpus if normal else 0), "every CPU is in a leaf"
    if not normal:
        assert box.get("type") == "PU"
        assert cpus == 1 << int(box.get("os_index", "-1"))
    for node in memory:
        assert mask(node.get("nodeset", "")) == 1 << int(node.get("os_index", "-1"))
        assert mask(node.get("nodeset", "")) & ~nodes == 0
        assert mask(node.get("cpuset", "")) & ~cpus == 0
