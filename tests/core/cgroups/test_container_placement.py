"""What containers are told of where they run: always what their cgroups hold, told apart into their own and shared CPUs."""

from typing import Any

from hypothesis import given, settings, strategies as st
from msgspec.structs import replace

from nodeagent.core.cgroups.container_placement import ContainerPlacement, container_placements
from nodeagent.core.cgroups.desired_cgroups import desired_cgroups
from nodeagent.core.model.cgroup_layout import POOL, cpuset_path, is_pooled
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import Phase
from nodeagent.core.resources.cpu.holdings import CpuHoldings, own_set_of
from tests.support.node_model import Agent, started
from tests.support.pods import app, burstable, cgroup_only, exclusive, init, mixed, pod, sidecar
from tests.support.world import MACHINE, SMALL, Node, node

PLRM = (("PodLevelResources", True), ("PodLevelResourceManagers", True))


def agent_with(*pods: Pod, of: Node | None = None) -> Agent:
    _, agent = started(of or node(SMALL), *pods)
    return agent


def placed(agent: Agent, *, online: CpuSet | None = None) -> dict[str, ContainerPlacement]:
    of = agent.machine.node
    kernel = of.kernel if online is None else replace(of.kernel, online=online)
    wanted = desired_cgroups(of.config, of.managers, kernel, agent.state)
    found = container_placements(of.managers, agent.state, {want.path: want for want in wanted}).by_key()
    pool = found.pop(POOL, None)
    assert all(found[path] == pool for path in found if is_pooled(path))
    return found


def at(exclusive: str = "", shared: str = "", nodes: str = "0") -> ContainerPlacement:
    return ContainerPlacement(CpuSet.parse(exclusive), CpuSet.parse(shared), NumaSet.parse(nodes))


def test_a_container_has_cpus_of_its_own_or_shares_the_pool() -> None:
    agent = agent_with(
        pod("alone", app(cpu="2")), pod("slot", cgroup_only(cpu="1")), pod("b", app(resources=burstable())), pod("e")
    )
    assert placed(agent) == {
        "poduid-alone/app": at("1,5"),
        "poduid-slot/slot": at("4"),
        "shared/pool/payload/burstable/poduid-b/app": at("", "0,2-3,6-7"),
        "shared/pool/payload/besteffort/poduid-e/app": at("", "0,2-3,6-7"),
    }


def test_under_policy_none_everybody_shares_what_is_online() -> None:
    of = node(SMALL, cpu_manager_policy="none", reserved_system_cpus=CpuSet())
    agent = agent_with(pod("g", app(cpu="2")), of=of)
    assert placed(agent) == {"poduid-g/app": at("", "0-7")}
    assert placed(agent, online=CpuSet.parse("0-3")) == {"poduid-g/app": at("", "0-3")}


def test_what_is_offline_is_not_told_and_who_has_none_left_shares_the_pool() -> None:
    agent = agent_with(pod("alone", app(cpu="2")), pod("slot", cgroup_only(cpu="1")))
    assert placed(agent, online=CpuSet.parse("0,2-3,5")) == {
        "poduid-alone/app": at("5"),
        "poduid-slot/slot": at("", "0,2-3"),
    }


def test_who_has_no_cpu_at_all_is_told_so() -> None:
    agent = agent_with(pod("alone", app(cpu="2")), pod("slot", cgroup_only(cpu="1")))
    assert placed(agent, online=CpuSet.parse("4")) == {"poduid-alone/app": at(), "poduid-slot/slot": at("4")}


def test_in_a_pods_own_pool_the_pool_is_shared_and_an_exclusive_neighbour_is_not() -> None:
    of = node(gates=PLRM, topology_manager_policy="restricted", topology_manager_scope="pod")
    agent = agent_with(pod("q", app("x", cpu="2"), app("s"), resources=exclusive("6", "256Mi")), pod("e"), of=of)
    found, promises = placed(agent), agent.state.promises
    own, whole = own_set_of(promises, "uid-q", "x"), promises.of_pod("uid-q").of(CpuHoldings).pod_cpus
    assert own is not None
    assert whole is not None
    assert found["poduid-q/x"] == ContainerPlacement(own, CpuSet(), NumaSet.parse("0-3"))
    assert found["poduid-q/s"] == ContainerPlacement(CpuSet(), whole - own, NumaSet.parse("0-3"))
    assert len(whole - own) == 4
    assert found["shared/pool/payload/besteffort/poduid-e/app"].shared_cpus.isdisjoint(whole)


def test_a_mixed_container_is_told_which_of_its_cpus_are_its_own() -> None:
    agent = agent_with(pod("m", mixed()), pod("b", mixed(own=1, resources=burstable("1200m"))), pod("e"))
    assert placed(agent) == {
        "poduid-m/app": at("1,5", "0,2-3,6-7"),
        "burstable/poduid-b/app": at("4", "0,2-3,6-7"),
        "shared/pool/payload/besteffort/poduid-e/app": at("", "0,2-3,6-7"),
    }
    assert placed(agent, online=CpuSet.parse("0,2-3,5"))["poduid-m/app"] == at("5", "0,2-3")
    assert placed(agent, online=CpuSet.parse("0,2-3"))["poduid-m/app"] == at("", "0,2-3"), "degraded: the pool is left"


def test_memory_nodes_are_those_of_the_promise() -> None:
    of = node(MACHINE, memory_manager_policy="None")
    assert placed(agent_with(pod("g", app(cpu="2")), of=of))["poduid-g/app"].memory_nodes == NumaSet.parse("0-3")


def test_only_containers_whose_cgroups_are_named_and_of_active_pods_are_there() -> None:
    agent = agent_with(pod("a", app(cpu="1")), pod("b", init(), sidecar(), app()))
    of = agent.machine.node
    wanted = {want.path: want for want in agent.desired_cgroups() if "uid-a" not in want.path}
    assert container_placements(of.managers, agent.state, wanted).by_key().keys() - {POOL} == {
        f"shared/pool/payload/besteffort/poduid-b/{name}" for name in ("init", "side", "app")
    }
    over = replace(agent.state, entries=tuple(replace(e, outcome=Phase.FAILED) for e in agent.state.entries))
    assert container_placements(of.managers, over, wanted).by_key().keys() <= {POOL}


SHAPES: tuple[Any, ...] = (
    lambda name: pod(name, app(cpu="1")),
    lambda name: pod(name, init(cpu="2"), app(cpu="1")),
    lambda name: pod(name, app(resources=burstable())),
    lambda name: pod(name, app("x", cpu="1"), app("s"), resources=exclusive("2", "256Mi")),
    lambda name: pod(name, mixed(own=1, cpu="1500m")),
    lambda name: pod(name, mixed(own=1, resources=burstable("1500m")), app("s")),
)


@settings(deadline=None)
@given(st.lists(st.sampled_from(SHAPES), max_size=4), st.sets(st.integers(0, 7)).map(CpuSet.from_ids))
def test_it_is_always_what_the_cgroup_holds_and_what_is_exclusive_is_one_pods(shapes: list[Any], gone: CpuSet) -> None:
    of = node(SMALL, gates=PLRM, topology_manager_scope="pod", topology_manager_policy="best-effort")
    agent = agent_with(*(shape(f"p{number}") for number, shape in enumerate(shapes)), of=of)
    online = of.kernel.online - gone
    kernel = replace(of.kernel, online=online)
    held = {want.path: want for want in desired_cgroups(of.config, of.managers, kernel, agent.state)}
    found = placed(agent, online=online)
    assert set(found) == {path for path, want in held.items() if want.is_leaf} - {POOL}
    for path, told in found.items():
        assert told.exclusive_cpus | told.shared_cpus == held[cpuset_path(path)].cpus()
        assert bool(told.exclusive_cpus and told.shared_cpus) == held[path].is_mixed
        for other, foreign in found.items():
            if other.rpartition("/")[0] != path.rpartition("/")[0]:
                assert told.exclusive_cpus.isdisjoint(foreign.exclusive_cpus | foreign.shared_cpus)
