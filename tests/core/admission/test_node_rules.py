"""The rules of a node that is only read agree with the managers of the same node."""

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.node_rules import count_lacking_cpus, isolation, read_node_of
from nodeagent.core.admission.node_setup import NodeSetup, on_machine, with_managers
from nodeagent.core.model.config import Config, Placement
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.resources.cpu.holdings import free_cpus
from tests.support.builders import admitted, machine, pod
from tests.support.pods import app

STATIC = Placement(cpu_manager_policy="static", reserved_system_cpus=CpuSet.parse("0,8"))
PLACEMENTS = (
    Placement(reserved_system_cpus=CpuSet.parse("0,8")),
    STATIC,
    replace(STATIC, isolated_cpus="only"),
    replace(STATIC, isolated_cpus="prefer"),
    replace(STATIC, cpu_manager_policy_options=(("strict-cpu-reservation", "true"),)),
    replace(STATIC, topology_manager_policy="restricted", topology_manager_scope="pod"),
)
PODS = (pod("own", app("a", "2")), pod("shares", app("a", "500m")))


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("is_offline", [False, True])
def test_the_rules_of_a_read_node_are_those_of_its_managers(placement: Placement, *, is_offline: bool) -> None:
    topology = replace(machine(), isolated=CpuSet.parse("2-3,10-11"))
    decided = on_machine(Config(placement=placement), topology)
    assert isinstance(decided, NodeSetup), decided
    promises = admitted(decided.managers, *PODS)
    if is_offline:
        topology = replace(topology, cpus=tuple(cpu for cpu in topology.cpus if cpu.id != 8), offline=CpuSet.of(8))
        decided = on_machine(decided.config, topology, decided.reserved)
        assert isinstance(decided, NodeSetup), decided
    read = read_node_of(decided.config, topology, topology, decided.reserved)
    assert (read.rules.reserved, read.rules.rules) == (decided.managers.reserved, decided.managers.rules)
    assert read.rules.grantable == decided.managers.grantable
    assert bool(free_cpus(promises, read.rules.grantable)) is decided.config.placement.has_static_cpus
    for one in PODS:
        mine, theirs = (isolation(rules, promises, one, "a") for rules in (read.rules, decided.managers))
        assert mine is theirs
        assert count_lacking_cpus(read.rules, promises, one, "a") == 0
    again = with_managers(read)
    assert isinstance(again, NodeSetup)
    assert again.managers.reserved == decided.managers.reserved
