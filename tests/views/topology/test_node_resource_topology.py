"""What Kubernetes' schedulers are told of a node: as the CRD demands, with the amounts that exporters find in PodResources."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from nodeagent.core.admission.managers import Admitted, Managers, admit, build, initial, resume
from nodeagent.core.model.config import Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.core.resources.memory.holdings import memory_accounts
from nodeagent.formats.topology.topology_spec import topology_from_spec
from nodeagent.tools.export.node_resource_topology import node_resource_topology
from tests.support.builders import GIB, machine, managers, pod
from tests.support.nrt_rules import checked, cpus_available, fits_one_node, memory_taken
from tests.support.pods import app
from tests.support.strategies import lived, lives, nodes

PAGES = {"hugepages-2Mi": GIB}


def amounts(node: Managers, promises: Any = None, topology: Topology | None = None) -> Any:
    promised = initial(node) if promises is None else promises
    return checked(node_resource_topology("node", topology or node.topology, node, promised))


@given(nodes(), lives())
def test_what_is_available_is_what_is_allocatable_without_what_pods_have_alone(node: Managers, events: Any) -> None:
    for moment in lived(node, events):
        promises = moment.after
        found = amounts(node, promises)
        assert found.keys() == set(node.topology.node_ids)
        for number, zone in found.items():
            cpus = node.topology.nodes.get(number, CpuSet())
            assert zone["cpu"]["capacity"] == len(cpus)
            assert zone["cpu"]["allocatable"] == len(cpus - node.reserved)
            assert zone["cpu"]["available"] == cpus_available(node, promises, number)
        for accounts in memory_accounts(promises):
            group = frozenset(accounts.cells)
            for resource, _ in accounts.tables:
                total = {
                    name: sum(found[member][resource][name] for member in group)
                    for name in ("allocatable", "available")
                }
                assert total["available"] == total["allocatable"] - memory_taken(promises, group, resource)


@given(nodes().filter(lambda node: node.placement.topology_manager_policy == "single-numa-node"), lives(), st.data())
def test_whom_the_agent_puts_on_one_node_the_schedulers_plugin_lets_pass(
    node: Managers, events: Any, data: st.DataObject
) -> None:
    """A Guaranteed pod with whole CPUs. With options, the agent may refuse what the plugin lets pass, never the other way round."""
    with_memory = bool(memory_accounts(initial(node)))
    cpu, memory = data.draw(st.integers(1, 8)), data.draw(st.sampled_from([GIB // 4, GIB, 3 * GIB, 6 * GIB]))
    new = pod("new", app("app", cpu=str(cpu), memory=str(memory)))
    requests = {"cpu": cpu} | ({"memory": memory} if with_memory else {})
    for moment in lived(node, events):
        if isinstance(admit(node, moment.after, new), Admitted):
            assert fits_one_node(amounts(node, moment.after), requests)


def test_what_no_manager_gives_out_is_there_and_not_allocatable() -> None:
    """A zone that lacks a resource is closed to pods that need no alignment, too."""
    topology = machine(hugepages=PAGES)
    node = build(topology, Placement())
    assert isinstance(node, Managers)
    nothing = {"allocatable": 0, "available": 0}
    expected = {
        "cpu": {"capacity": 8} | nothing,
        "memory": {"capacity": 8 * GIB} | nothing,
        "hugepages-2Mi": {"capacity": GIB} | nothing,
    }
    assert amounts(node) == {0: expected, 1: expected}


def test_shared_containers_and_fractions_take_nothing_of_a_zone() -> None:
    node = managers(reserved="0,8")
    before = initial(node)
    decision = admit(node, before, pod("web", app("app", cpu="1500m", memory="1Gi")))
    assert isinstance(decision, Admitted)
    assert amounts(node, decision.promises) == amounts(node, before)


def test_a_pod_alone_on_its_cpus_and_memory_takes_them_of_its_zone() -> None:
    node = managers(machine(hugepages=PAGES), reserved="0,8", reserved_memory={0: "1Gi"})
    decision = admit(node, initial(node), pod("web", app("app", cpu="2", memory="2Gi", hugepages_2Mi="256Mi")))
    assert isinstance(decision, Admitted)
    zone = amounts(node, decision.promises)[0]
    assert zone["cpu"] == {"capacity": 8, "allocatable": 6, "available": 4}
    assert zone["memory"] == {"capacity": 8 * GIB, "allocatable": 6 * GIB, "available": 4 * GIB}
    assert zone["hugepages-2Mi"] == {"capacity": GIB, "allocatable": GIB, "available": GIB * 3 // 4}


def test_cpus_that_only_isolated_pods_get_are_what_is_allocatable() -> None:
    topology = topology_from_spec("2s.4c.2t")
    isolated = Topology.of(topology.cpus, topology.numa, isolated=CpuSet.parse("2-3,10-11"))
    node = managers(isolated, reserved="0,8", isolated_cpus="only")
    assert {number: zone["cpu"]["allocatable"] for number, zone in amounts(node).items()} == {0: 4, 1: 0}


def test_cpus_that_are_gone_are_of_no_zone() -> None:
    node = managers(reserved="0,8")
    now = node.topology.without(CpuSet.parse("3,11"))
    assert amounts(node, topology=now)[0]["cpu"] == {"capacity": 6, "allocatable": 4, "available": 4}


def test_memory_that_has_shrunk_is_not_negative() -> None:
    node = managers(reserved_memory={0: "1Gi"})
    decision = admit(node, initial(node), pod("web", app("app", cpu="2", memory="6Gi")))
    assert isinstance(decision, Admitted)
    smaller = managers(machine(memory=4 * GIB), reserved_memory={0: "1Gi"})
    promises = resume(smaller, decision.promises)
    assert not hasattr(promises, "message"), promises
    assert amounts(smaller, promises)[0]["memory"]["available"] == 0


def test_distances_are_costs_and_unknown_ones_are_left_out() -> None:
    topology = Topology.of(machine().cpus, [NumaNode(0, GIB, distances=(10, 21)), NumaNode(1, GIB)])
    node = managers(topology)
    zones = node_resource_topology("n", topology, node, initial(node))["zones"]
    assert zones[0]["costs"] == [{"name": "node-0", "value": 10}, {"name": "node-1", "value": 21}]
    assert "costs" not in zones[1]


@pytest.mark.parametrize(
    ("placement", "attributes"),
    [
        ({}, {"topologyManagerPolicy": "none", "topologyManagerScope": "container"}),
        (
            {
                "topology_manager_policy": "restricted",
                "topology_manager_scope": "pod",
                "topology_manager_policy_options": (("max-allowable-numa-nodes", "16"),),
            },
            {
                "topologyManagerPolicy": "restricted",
                "topologyManagerScope": "pod",
                "topologyManagerMaxNUMANodes": "16",
            },
        ),
    ],
)
def test_policies_are_attributes(placement: dict[str, Any], attributes: dict[str, str]) -> None:
    node = managers(**placement)
    document = node_resource_topology("n", node.topology, node, initial(node))
    assert {each["name"]: each["value"] for each in document["attributes"]} == attributes
