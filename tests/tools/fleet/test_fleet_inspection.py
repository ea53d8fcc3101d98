"""Who runs where in a fleet: as `nodeagent inspect` sees each node, in a line for each node and pod."""

from msgspec.structs import replace

from nodeagent.core.model.topology import Topology
from nodeagent.tools.fleet.inspection import describe_inspection
from nodeagent.tools.fleet.nodes import FleetNode, UnreadNode, name_apart
from nodeagent.tools.fleet.text import render_inspection
from tests.support import json_schema
from tests.support.fleets import node, with_pods
from tests.support.inspected_nodes import everything, machine
from tests.support.pods import app, pod


def test_each_pod_has_its_node_and_its_cpus() -> None:
    nodes = [node("a", world=with_pods(2, 1)), node("b", world=with_pods(4))]
    document = describe_inspection(nodes)
    json_schema.check(document, "fleet-inspection")
    assert [(one["name"], one["node"], one["cpus"], one["numaNodes"], one["shares"]) for one in document["pods"]] == [
        ("helper", "a", "", "", True),
        ("helper", "b", "", "", True),
        ("own-0", "a", "1,5", "0", False),
        ("own-0", "b", "2-3,6-7", "1", False),
        ("own-1", "a", "4", "0", False),
    ]
    assert document["summary"] == {
        "nodes": 2,
        "cpus": 16,
        "exclusive": 7,
        "free": 7,
        "pods": 5,
        "differing": 0,
        "unhealthy": 0,
    }


def test_what_needs_attention_is_counted_and_said() -> None:
    _, _, view = everything()
    sick = FleetNode("sick", "sick.json", machine(), node("x").capture, view)
    document = describe_inspection([node("well"), sick])
    assert [(one["healthy"], one["differs"]) for one in document["nodes"]] == [(True, False), (False, True)]
    text = render_inspection(document)
    assert "NOT healthy: 1 problem, 1 refused pod" in " ".join(text.split())
    assert "1 node needs attention (nodeagent inspect" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_pod_that_holds_nothing_any_more_has_no_cpus() -> None:
    _, _, view = everything()
    text = render_inspection(describe_inspection([FleetNode("n", "n.json", machine(), None, view)]), 120)
    rows = {line.split()[0]: line.split()[2:] for line in text.splitlines() if line.startswith("default/")}
    assert rows["default/job"] == ["Succeeded", "-", "-"]
    assert rows["default/too-big"][:2] == ["Refused:", "UnexpectedAdmissionError"]


def test_a_machine_without_an_agent_is_no_healthy_node() -> None:
    document = describe_inspection([FleetNode("m", "m.json", machine())], [UnreadNode("x", "gone", "look")])
    json_schema.check(document, "fleet-inspection")
    assert (document["nodes"][0]["healthy"], document["nodes"][0]["cpus"]["onlineCount"]) == (None, 8)
    assert render_inspection(document).splitlines()[-1] == "1 node without an agent"
    assert document["unread"] == [{"source": "x", "why": "gone", "hint": "look"}]


def test_cgroups_that_were_not_captured_are_not_said_to_be_as_promised() -> None:
    seen = node("a", world=with_pods(2))
    assert seen.view is not None
    view = replace(seen.view, observation=replace(seen.view.observed, cgroups=None))
    document = describe_inspection([replace(seen, view=view)])
    assert document["nodes"][0]["compared"] is False
    assert "healthy; its cgroups were not captured" in render_inspection(document)


def test_a_name_that_two_nodes_have_gets_its_source() -> None:
    nodes = name_apart([node("a"), replace(node("a"), source="other.json"), node("b")])
    assert [one.name for one in nodes] == ["a (a.json)", "a (other.json)", "b"]


def test_a_large_fleet_fits_80_columns() -> None:
    large = Topology.of(machine().cpus, machine().numa)
    worlds = [with_pods(2, 1).add(pod("a-name-that-is-much-longer", app("app", cpu="1"))) for _ in range(3)]
    nodes = [node(f"node{at}.rack7.example.com", world=world) for at, world in enumerate(worlds)]
    assert large.online == machine().online
    assert all(len(line) <= 80 for line in render_inspection(describe_inspection(nodes)).splitlines())
