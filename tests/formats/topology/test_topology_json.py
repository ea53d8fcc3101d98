"""The machine as a document and back; what a scenario may leave out; what is refused, and by which name."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import Cache, Cpu, NumaNode, Topology
from nodeagent.formats.topology.topology_json import TopologyDocumentError, topology_document, topology_from_document

SCENARIO: dict[str, Any] = {
    "id": "two-nodes",
    "topology": {"cpus": [{"id": cpu, "core": cpu // 2, "socket": 0, "numa": cpu // 2} for cpu in range(4)]},
    "numa": [
        {"id": 0, "memory": 2**33, "hugepages": {"hugepages-2Mi": 2**30, "hugepages-1Gi": 0}, "distances": [10, 21]}
    ],
    "config": {"cpuManagerPolicy": "static"},
    "steps": [],
}


def test_scenario_becomes_a_topology() -> None:
    topology = topology_from_document(SCENARIO)
    assert topology.cpus == tuple(Cpu(cpu, core=cpu // 2, socket=0, numa=cpu // 2) for cpu in range(4))
    assert topology.numa == (
        NumaNode(0, 2**33, (("hugepages-1Gi", 0), ("hugepages-2Mi", 2**30)), (10, 21)),
        NumaNode(1, 64 * 2**30),
    )
    assert (topology.socket_count, topology.reported_cpu_count) == (1, 4)
    assert topology.memory_bytes == 2**33 + 64 * 2**30


def test_absent_is_left_out() -> None:
    document = topology_document(topology_from_document(SCENARIO))
    assert document["topology"] == SCENARIO["topology"]
    assert "distances" not in document["numa"][1]
    assert (document["offline"], document["skipped"], document["l3"]) == ("", "", [])


def test_l3_groups_from_the_cpus_alone() -> None:
    cpus = [{"id": cpu, "core": cpu, "socket": 0, "numa": 0, "l3": 7 - cpu // 2} for cpu in range(4)]
    assert topology_from_document({"topology": {"cpus": cpus}}).l3 == (CpuSet.parse("0-1"), CpuSet.parse("2-3"))


ids = st.integers(0, 300)
wide = st.integers(0, 2**32 - 1)
amounts = st.integers(0, 2**63 - 1)
hugepages = st.dictionaries(
    st.sampled_from(["hugepages-2Mi", "hugepages-1Gi", "hugepages-64Ki"]), st.integers(0, 2**50)
)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    numbers = draw(st.lists(ids, min_size=1, max_size=12, unique=True))
    nodes = draw(st.lists(ids, min_size=1, max_size=4, unique=True))
    cpus = [
        Cpu(
            number,
            core=draw(wide),
            socket=draw(wide),
            numa=draw(st.sampled_from(nodes)),
            uncore=draw(st.none() | wide),
            die=draw(st.none() | wide),
            core_class=draw(st.none() | st.sampled_from(["performance", "efficiency"])),
            capacity=draw(st.none() | amounts),
        )
        for number in numbers
    ]
    numa = [
        NumaNode(
            node,
            draw(st.integers(0, 2**50)),
            tuple(sorted(draw(hugepages).items())),
            draw(st.none() | st.lists(st.integers(0, 255), max_size=4).map(tuple)),
        )
        for node in nodes
    ]
    cut = draw(st.integers(0, len(numbers)))
    others = draw(st.sets(st.integers(400, 410)))
    groups = [group for group in (numbers[:cut], [*numbers[cut:], *others]) if group]
    return Topology.of(
        cpus,
        numa,
        offline=CpuSet.from_ids(draw(st.sets(st.integers(301, 310)))),
        skipped=CpuSet.from_ids(others),
        l3=map(CpuSet.from_ids, groups),
        caches=[
            Cache(level, kind, CpuSet.from_ids(group), draw(st.none() | amounts))
            for group in groups
            for level, kind in draw(
                st.sets(st.tuples(st.integers(0, 255), st.sampled_from(["data", "unified"])), max_size=2)
            )
        ],
        socket_count=draw(st.none() | ids),
        reported_cpu_count=draw(st.none() | ids),
        memory_bytes=draw(st.none() | amounts),
        hugepages=draw(st.none() | hugepages.map(dict.items)),
    )


@settings(deadline=None)
@given(topologies())
def test_there_and_back(topology: Topology) -> None:
    document = topology_document(topology)
    assert topology_from_document(document) == topology
    assert topology_from_document(json.loads(json.dumps(document))) == topology
    assert topology_from_document(yaml.safe_load(yaml.safe_dump(document))) == topology


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """The scenario with one value put in; Ellipsis: taken out."""
    document: dict[str, Any] = json.loads(json.dumps(SCENARIO))
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


CPU = ("topology", "cpus", 1)
NODE = ("numa", 0)
REFUSED: tuple[tuple[tuple[str | int, ...], object, str], ...] = (
    (("topology",), ..., "topology: is missing"),
    (("topology",), [], "topology: must be an object"),
    (("topology", "cpus"), ..., "topology.cpus: is missing"),
    (("topology", "cpus"), {}, "topology.cpus: must be a list"),
    (("topology", "cores"), [], "topology.cores: unknown field"),
    (CPU, 3, "topology.cpus[1]: must be an object, not 3"),
    ((*CPU, "id"), ..., "topology.cpus[1].id: is missing"),
    ((*CPU, "id"), 0, "topology.cpus[1].id: must occur only once, not 0"),
    ((*CPU, "id"), "1", "topology.cpus[1].id: must be a whole number from 0 to 65535"),
    ((*CPU, "id"), True, "topology.cpus[1].id: must be a whole number"),
    ((*CPU, "id"), None, "topology.cpus[1].id: is missing"),
    ((*CPU, "id"), 1.0, "topology.cpus[1].id: must be a whole number"),
    ((*CPU, "id"), 10**30, "topology.cpus[1].id: must be a whole number"),
    ((*CPU, "core"), -1, "topology.cpus[1].core: must be a whole number"),
    ((*CPU, "socket"), [], "topology.cpus[1].socket: must be a whole number"),
    ((*CPU, "numa"), 65_536, "topology.cpus[1].numa: must be a whole number from 0 to 65535"),
    ((*CPU, "uncore"), "x", "topology.cpus[1].uncore: must be a whole number"),
    ((*CPU, "uncoreCache"), 1, "topology.cpus[1].uncoreCache: unknown field"),
    ((*CPU, "coreClass"), "fast", "topology.cpus[1].coreClass: must be one of performance, efficiency"),
    (("numa",), {}, "numa: must be a list"),
    (("numa", 0), None, "numa[0]: must be an object"),
    ((*NODE, "memory"), ..., "numa[0].memory: is missing"),
    ((*NODE, "memory"), 2**63, "numa[0].memory: must be a whole number"),
    ((*NODE, "memory"), "8Gi", 'numa[0].memory: must be a whole number from 0 to 9223372036854775807, not "8Gi"'),
    ((*NODE, "hugepages"), [], "numa[0].hugepages: must be an object"),
    ((*NODE, "hugepages", "memory"), 1, "numa[0].hugepages.memory: must be a resource name"),
    ((*NODE, "hugepages", "hugepages-2Mi"), -1, "numa[0].hugepages[hugepages-2Mi]: must be a whole number"),
    ((*NODE, "distances"), 10, "numa[0].distances: must be a list"),
    ((*NODE, "distances", 1), "21", "numa[0].distances[1]: must be a whole number"),
    (("offline",), "3-1", "offline: must be a set of CPUs"),
    (("offline",), 3, "offline: must be a string"),
    (("l3",), ["0-1"], "l3[0]: must be the CPUs that have this index as `l3`"),
    (("l3",), ["9", "9"], "l3[1]: must be the CPUs that have this index"),
    (("caches",), "L2", "caches: must be a list"),
    (("caches",), [{"type": "data", "cpus": "0"}], "caches[0].level: is missing"),
    (
        ("caches",),
        [{"level": 256, "type": "data", "cpus": "0"}],
        "caches[0].level: must be a whole number from 0 to 255",
    ),
    (
        ("caches",),
        [{"level": 2, "type": "L2", "cpus": "0"}],
        "caches[0].type: must be one of data, instruction, unified",
    ),
    (("caches",), [{"level": 2, "type": "data", "cpus": ""}], "caches[0].cpus: must contain at least one CPU"),
    (("caches",), [{"level": 2, "type": "data", "cpus": "0", "ways": 8}], "caches[0].ways: unknown field"),
    (("sockets",), "two", "sockets: must be a whole number"),
)


@pytest.mark.parametrize(("path", "value", "message"), REFUSED, ids=[message[:50] for _, _, message in REFUSED])
def test_errors_name_the_field(path: tuple[str | int, ...], value: object, message: str) -> None:
    with pytest.raises(TopologyDocumentError) as caught:
        topology_from_document(changed(path, value))
    assert caught.value.message.startswith(message)
    assert caught.value.hint


@pytest.mark.parametrize("document", [None, [], "x", 1], ids=repr)
def test_no_object(document: object) -> None:
    with pytest.raises(TopologyDocumentError, match="the document: must be an object"):
        topology_from_document(document)


def test_a_node_listed_twice() -> None:
    with pytest.raises(TopologyDocumentError, match=r"numa\[1\]\.id: must occur only once"):
        topology_from_document({**SCENARIO, "numa": [{"id": 0, "memory": 1}, {"id": 0, "memory": 2}]})


def test_a_group_that_is_not_listed() -> None:
    document = changed((*CPU, "l3"), 1)
    with pytest.raises(TopologyDocumentError, match="l3: must have a group 1"):
        topology_from_document({**document, "l3": []})
