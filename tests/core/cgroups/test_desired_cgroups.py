"""Which cgroups there are and what they hold: layout (D10), CPUs (D13, D14), quota (D15, a row each), weights and memory."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.desired_cgroups import desired_cgroups, pod_cgroups, usable_cpus
from nodeagent.core.cgroups.write_order import GatherThreads
from nodeagent.core.model.cgroup import (
    Attribute,
    ByteLimit,
    CpuMax,
    DesiredCgroup,
    TaskLimit,
    Value,
    cpu_shares,
    cpu_weight,
)
from nodeagent.core.model.cgroup_layout import POOL, is_pooled
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Container, Pod, QosClass, ResourceRequirements
from nodeagent.core.model.quiet import QuietRequest, QuietSettings
from nodeagent.core.model.state import Phase
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of, with_default_set
from tests.support.builders import GIB
from tests.support.node_model import Agent, Machine, started
from tests.support.pods import amounts, app, burstable, cgroup_only, exclusive, init, mixed, pod, sidecar
from tests.support.world import MACHINE, PAGE, SMALL, Node, node

NONE = CpuMax(None, 100_000)


def admitted(*pods: Pod, of: Node | None = None) -> tuple[Agent, Mapping[str, DesiredCgroup]]:
    _, agent = started(of or node(), *pods)
    return agent, {w.path: w for w in agent.desired_cgroups()}


def quota(cpus: float) -> CpuMax:
    return CpuMax(int(cpus * 100_000), 100_000)


def limited(request: str | None, limit: str | None) -> ResourceRequirements:
    return ResourceRequirements(amounts(request), amounts(limit))


# Layout (D10)

SHARED = (
    "shared",
    "shared/pool",
    "shared/pool/payload",
    "shared/pool/payload/burstable",
    "shared/pool/payload/besteffort",
)


def test_pods_lie_under_their_qos_class() -> None:
    _, desired_by_path = admitted(pod("g", app(cpu="2")), pod("b", app(resources=burstable())), pod("e", app()))
    assert list(desired_by_path) == [
        "",
        "burstable",
        "besteffort",
        *SHARED,
        "poduid-g",
        "poduid-g/app",
        "shared/pool/payload/burstable/poduid-b",
        "shared/pool/payload/burstable/poduid-b/app",
        "shared/pool/payload/besteffort/poduid-e",
        "shared/pool/payload/besteffort/poduid-e/app",
    ]


def test_processes_live_in_the_containers_cgroups_alone() -> None:
    _, desired_by_path = admitted(pod("g", init(), sidecar(), app(), cgroup_only()))
    leaves = {p: w for p, w in desired_by_path.items() if w.is_leaf}
    assert set(leaves) == {
        "shared/pool",
        *(f"shared/pool/payload/besteffort/poduid-g/{name}" for name in ("init", "side", "app", "slot")),
    }
    assert all(w.controllers == set() for p, w in leaves.items() if is_pooled(p)), "they have no payload's cgroup"
    _, desired_by_path = admitted(pod("g", app(cpu="2")), pod("e"))
    assert desired_by_path["poduid-g/app"].controllers == {"cpuset"}, "for the payload's cgroup"
    for path, want in desired_by_path.items():
        has_cpuset = not is_pooled(path) and path != "shared/pool/payload"
        assert want.is_leaf or want.controllers == {"cpu", "memory", *(["cpuset"] if has_cpuset else [])}


def test_nothing_is_written_to_the_pods_unit_itself_but_its_childrens_controllers() -> None:
    _, desired_by_path = admitted(pod("g"))
    assert desired_by_path[""] == DesiredCgroup("", frozenset({"cpu", "cpuset", "memory"}))


def test_controllers_for_accounting_are_enabled_where_there_are_any() -> None:
    of = node()
    agent, _ = admitted(pod("g"), of=of)
    kernel = replace(of.kernel, extra_controllers=frozenset({"pids"}))
    desired_by_path = {w.path: w for w in desired_cgroups(of.config, of.managers, kernel, agent.state)}
    assert desired_by_path["shared/pool/payload/besteffort/poduid-g"].controllers == {"cpu", "memory", "pids"}


def test_the_path_stays_when_a_container_restarts() -> None:
    machine, agent = started(node(), pod("g", app(cpu="2")))
    before = agent.desired_cgroups()
    machine.exit(machine.run_of("app"), 1)
    agent.rest()
    assert agent.desired_cgroups() == before


def test_refused_and_finished_pods_have_no_cgroup() -> None:
    agent, _ = admitted(pod("a"), pod("b", app(cpu="500")))
    over = replace(agent.state.entries[0], outcome=Phase.SUCCEEDED)
    of = node()
    desired_by_path = desired_cgroups(of.config, of.managers, of.kernel, agent.state.with_entry(over))
    assert [w.path for w in desired_by_path] == ["", "burstable", "besteffort", *SHARED]


# CPUs


def test_an_exclusive_container_gets_its_own_cpus_and_a_shared_one_the_pool() -> None:
    agent, desired_by_path = admitted(pod("g", app("x", cpu="2"), app("s", cpu="1500m")))
    own, shared = desired_by_path["poduid-g/x"], desired_by_path["poduid-g/s"]
    assert own.cpus() == CpuSet.parse("1,17")
    assert own.is_exclusive
    assert shared.cpus() == CpuSet.parse("0,2-16,18-31") == default_set(agent.state.promises)
    assert not shared.is_exclusive


def test_a_pods_cgroup_holds_its_containers_cpus_the_reserved_ones_and_the_pool_if_one_shares() -> None:
    """Where a container may run that has lost all of its own: on no other pod's."""
    pods = (pod("g", app("x", cpu="2")), pod("h", app("y", cpu="1"), app("s", cpu="1500m")))
    agent, desired_by_path = admitted(*pods)
    pool = default_set(agent.state.promises)
    for path, container, others in (("poduid-g", "x", agent.machine.node.managers.reserved), ("poduid-h", "y", pool)):
        own = desired_by_path[f"{path}/{container}"].cpus()
        assert own.isdisjoint(pool)
        assert desired_by_path[path].cpus() == own | others


def test_a_container_falls_back_on_its_own_cpus_and_the_reserved_ones_or_on_the_pool_that_it_shares() -> None:
    agent, before = admitted(pod("g", app("x", cpu="2")), pod("s", app("s")))
    own, reserved = before["poduid-g/x"].cpus(), agent.machine.node.managers.reserved
    assert before["poduid-g/x"].fallback_cpus() == own | reserved
    assert before[POOL].fallback_cpus() == default_set(agent.state.promises)
    agent.want(*(manifest.pod for manifest in agent.wanted), pod("h", app("y", cpu="1")))
    agent.rest()
    after = {want.path: want for want in agent.desired_cgroups()}
    assert after["poduid-g/x"].fallback_cpus() == own | reserved, "whatever the pool is"
    assert after[POOL].fallback_cpus() == before[POOL].cpus() - after["poduid-h/y"].cpus()
    _, desired_by_path = admitted(pod("g", app("x", cpu="7")), of=starving())
    assert desired_by_path["poduid-g"].cpus() == CpuSet.parse("0-7"), "the pool is empty, CPU 0 strictly reserved"


@pytest.mark.parametrize("path", ["poduid-a/app", "poduid-a/beside"], ids=["of its own", "shared"])
def test_processes_that_the_kernel_drove_elsewhere_are_gathered_and_nothing_else_is_touched(path: str) -> None:
    machine, agent = started(node(SMALL), pod("a", app(cpu="1"), app("beside", cpu="100m")), pod("b", app(cpu="2")))
    free = max(default_set(agent.state.promises))
    machine.groups[path].elsewhere = CpuSet.of(free)
    before = len(machine.writes)
    assert agent.plan().occupied >= CpuSet.of(free) - machine.granted(path)
    agent.turn()
    assert machine.writes[before:] == [GatherThreads(path, vacates=CpuSet.of(free))]
    assert not machine.groups[path].elsewhere
    assert agent.plan().changes == ()


def test_cpus_on_which_such_processes_may_still_be_are_given_to_nobody() -> None:
    machine, agent = started(node(SMALL), pod("a", app("beside", cpu="100m")))
    (path,) = machine.populated()
    machine.groups[path].elsewhere = default_set(agent.state.promises)
    machine.broken[path, GatherThreads] = "Device or resource busy"
    agent.want(*(manifest.pod for manifest in agent.wanted), pod("b", app(cpu="2")))
    agent.turn()
    assert machine.populated() == (path,)
    machine.broken.clear()
    agent.rest()
    assert machine.populated() == (path, "poduid-b/app")


MIXED = pytest.mark.parametrize(
    ("container", "path"),
    [
        pytest.param(mixed(), "poduid-m/app", id="Guaranteed"),
        pytest.param(mixed(resources=burstable("2500m")), "burstable/poduid-m/app", id="Burstable"),
        pytest.param(mixed(resources=burstable("2500m", "4")), "burstable/poduid-m/app", id="Burstable with a limit"),
    ],
)


@MIXED
def test_a_mixed_container_gets_its_own_cpus_and_the_pool_beside_them(container: Container, path: str) -> None:
    agent, desired_by_path = admitted(pod("m", container), pod("s"))
    want, pool = desired_by_path[path], default_set(agent.state.promises)
    assert want.exclusive_cpus == own_set_of(agent.state.promises, "uid-m", "app") == CpuSet.parse("1,17")
    assert want.cpus() == want.exclusive_cpus | pool
    assert desired_by_path[POOL].cpus() == pool
    assert (want.get(Attribute.CPU_MAX), desired_by_path[path.rpartition("/")[0]].get(Attribute.CPU_MAX)) == (
        NONE,
        NONE,
    )
    assert want.get(Attribute.CPU_WEIGHT) == cpu_weight(cpu_shares(2500))


def test_without_the_gate_a_mixed_container_has_its_limit_as_quota() -> None:
    of = node(gates=(("DisableCPUQuotaWithExclusiveCPUs", False),))
    _, desired_by_path = admitted(pod("m", mixed()), of=of)
    assert desired_by_path["poduid-m/app"].get(Attribute.CPU_MAX) == quota(2.5)
    assert desired_by_path["poduid-m"].get(Attribute.CPU_MAX) == quota(2.5)


def test_a_mixed_container_follows_the_pool_and_nobody_else_is_on_its_cpus() -> None:
    machine, agent = started(node(SMALL), pod("m", mixed()))
    for pods in ((pod("x", app(cpu="2")),), (pod("x", app(cpu="2")), pod("y", app(cpu="1"))), ()):
        agent.want(pod("m", mixed()), *pods)
        agent.settle()
        pool = default_set(agent.state.promises)
        assert machine.effective("poduid-m/app") == CpuSet.parse("1,5") | pool
        assert agent.plan().changes == ()
    assert pool == CpuSet.parse("0,2-4,6-7")


def test_only_the_cgroups_of_pods_that_use_the_pool_are_made_anew_when_it_changes() -> None:
    _, agent = started(
        node(), pod("x", app(cpu="2")), pod("m", mixed()), pod("both", app(cpu="1"), app("b", cpu="1500m"))
    )
    of, state = agent.machine.node, agent.state
    before = pod_cgroups(of.config, of.managers, of.kernel, state)
    smaller = replace(state, promises=with_default_set(state.promises, default_set(state.promises) - CpuSet.of(15)))
    after = pod_cgroups(of.config, of.managers, of.kernel, smaller, before)
    assert {uid for uid, (_, value) in after.kept.items() if value is not before.kept[uid][1]} == {"uid-m", "uid-both"}


def test_with_an_empty_pool_a_mixed_container_has_its_own_cpus_and_is_not_frozen() -> None:
    of = starving()
    of = replace(of, config=replace(of.config, check_allocatable=False))
    _, desired_by_path = admitted(pod("m", mixed()), pod("x", app(cpu="5")), of=of)
    want = desired_by_path["poduid-m/app"]
    assert (want.cpus(), want.exclusive_cpus, want.is_starved) == (CpuSet.parse("1,5"), CpuSet.parse("1,5"), False)


def test_of_a_whole_request_nothing_is_left_to_share() -> None:
    """A Burstable pod's container can have CPUs of its own alone, too."""
    _, desired_by_path = admitted(pod("b", mixed(cpu="2", resources=burstable("2")), app("s")))
    want = desired_by_path["burstable/poduid-b/app"]
    assert want.cpus() == want.exclusive_cpus == CpuSet.parse("1,17")


def test_under_policy_none_everybody_shares_everything() -> None:
    of = node(cpu_manager_policy="none", reserved_system_cpus=CpuSet())
    _, desired_by_path = admitted(pod("g", app(cpu="2")), of=of)
    assert desired_by_path["poduid-g/app"].cpus() == MACHINE.online
    assert not desired_by_path["poduid-g/app"].is_exclusive


@pytest.mark.parametrize(
    ("own", "pool", "online", "expected"),
    [
        pytest.param("2-3", "0-1", "0-3", "2-3", id="its own"),
        pytest.param("2-3", "0-1", "0-2", "2", id="as far as they are online"),
        pytest.param("2-3", "0-1", "0-1", "0-1", id="none online: the shared pool (D14)"),
        pytest.param("2-3", "", "0-1", "", id="none online and no pool: starved"),
        pytest.param(None, "0-1", "0-3", "0-1", id="shared"),
        pytest.param(None, "0-1", "1-3", "1", id="shared, as far as it is online"),
        pytest.param(None, "", "0-3", "", id="no pool: starved (D14)"),
    ],
)
def test_cpus_that_are_usable_now(own: str | None, pool: str, online: str, expected: str) -> None:
    mine = None if own is None else CpuSet.parse(own)
    assert usable_cpus(mine, CpuSet.parse(pool), CpuSet.parse(online)) == CpuSet.parse(expected)


def starving() -> Node:
    """Strictly reserved CPUs are not in the pool: exclusive pods can use it up."""
    return node(SMALL, cpu_manager_policy_options=(("strict-cpu-reservation", "true"),))


def test_an_empty_pool_starves_the_shared_containers_and_their_admission_stands() -> None:
    machine, agent = started(starving(), pod("s"))
    agent.want(pod("s"), pod("x", app(cpu="7")))
    agent.rest()
    want = next(w for w in agent.desired_cgroups() if w.path == "shared/pool/payload/besteffort/poduid-s/app")
    assert want.is_starved
    assert want.get(Attribute.CPUSET_CPUS) is None, "an empty cpuset must never be written"
    assert machine.is_frozen("shared/pool/payload/besteffort/poduid-s/app")
    assert machine.running_containers() == ("poduid-s/app", "poduid-x/app"), "it is there, and doesn't run"
    agent.want(pod("s"))
    agent.rest()
    assert not machine.is_frozen("shared/pool/payload/besteffort/poduid-s/app")
    assert machine.effective("shared/pool/payload/besteffort/poduid-s/app") == CpuSet.parse("1-7")


def test_nothing_is_started_in_a_starved_container_and_a_turn_there_writes_nothing() -> None:
    machine, agent = started(starving(), pod("x", app(cpu="7")), pod("s"))
    assert machine.running_containers() == ("poduid-x/app",)
    writes, saves = len(machine.writes), agent.saves
    agent.turn()
    agent.turn()
    assert (len(machine.writes), agent.saves) == (writes, saves)
    assert agent.state.entries[1].phase is Phase.PENDING
    agent.want(pod("s"))
    agent.rest()
    assert machine.running_containers() == ("poduid-s/app",)


def test_a_starved_pod_can_be_ended() -> None:
    machine, agent = started(starving(), pod("s"))
    agent.want(pod("s"), pod("x", app(cpu="7")))
    agent.rest()
    agent.want(pod("x", app(cpu="7")))
    agent.settle()
    assert machine.running_containers() == ("poduid-x/app",)
    assert [e.pod.name for e in agent.state.entries] == ["x"]


def test_of_whole_cores_one_thread_each_runs_and_the_siblings_are_nobodys() -> None:
    alone = QuietRequest("", QuietSettings(idle_siblings=True))
    machine, agent = started(node(SMALL), pod("one", app(cpu="4"), quiet=alone), pod("other", app()))
    own = own_set_of(agent.state.promises, "uid-one", "app")
    assert own is not None
    runs = CpuSet.from_ids(min(core) for core in SMALL.cores.values() if core <= own)
    assert len(runs) == 2
    want = next(want for want in agent.desired_cgroups() if want.path == "poduid-one/app")
    assert (want.cpus(), want.exclusive_cpus, want.fallback_cpus()) == (runs, runs, own | CpuSet.of(0))
    assert machine.effective("poduid-one/app") == runs
    assert agent.plan().changes == ()
    assert machine.effective(POOL).isdisjoint(own)
    first = min(runs)
    (sibling,) = next(core for core in SMALL.cores.values() if first in core) - CpuSet.of(first)
    online = machine.node.kernel.online - CpuSet.of(first)
    machine.node = replace(machine.node, kernel=replace(machine.node.kernel, online=online))
    agent.rest()
    assert machine.effective("poduid-one/app") == runs - CpuSet.of(first) | CpuSet.of(sibling)


def test_a_container_whose_last_cpu_goes_offline_runs_in_the_pool_until_it_returns() -> None:
    machine, agent = started(node(SMALL), pod("x", app(cpu="2")), pod("s"))
    online = machine.node.kernel.online
    assert own_set_of(agent.state.promises, "uid-x", "app") == CpuSet.parse("1,5")
    machine.node = replace(machine.node, kernel=replace(machine.node.kernel, online=CpuSet.parse("0,2-4,6-7")))
    agent.rest()
    assert machine.effective("poduid-x/app") == CpuSet.parse("0,2-4,6-7")
    assert own_set_of(agent.state.promises, "uid-x", "app") == CpuSet.parse("1,5"), "the promise stands"
    machine.node = replace(machine.node, kernel=replace(machine.node.kernel, online=online))
    agent.rest()
    assert machine.effective("poduid-x/app") == CpuSet.parse("1,5")
    assert machine.effective("shared/pool/payload/besteffort/poduid-s/app") == CpuSet.parse("0,2-4,6-7")


def test_displaced_exclusive_containers_come_home_without_ever_sharing() -> None:
    """Somebody swapped two containers' CPUs: each is in the other's way (the model checks every write)."""
    machine, agent = started(node(SMALL), pod("a", app(cpu="2")), pod("b", app(cpu="2")))
    first, second = machine.groups["poduid-a/app"], machine.groups["poduid-b/app"]
    mine, theirs = first.values[Attribute.CPUSET_CPUS], second.values[Attribute.CPUSET_CPUS]
    first.values[Attribute.CPUSET_CPUS], second.values[Attribute.CPUSET_CPUS] = theirs, mine
    plan = agent.plan()
    for change in plan.changes:
        machine.apply(change)
    assert agent.plan().changes == ()
    assert (first.values[Attribute.CPUSET_CPUS], second.values[Attribute.CPUSET_CPUS]) == (mine, theirs)
    agent.check()


# Memory nodes


def test_memory_comes_from_every_node_with_memory_unless_promised() -> None:
    _, desired_by_path = admitted(pod("g", app(cpu="2")))
    assert desired_by_path["poduid-g/app"].get(Attribute.CPUSET_MEMS) == NumaSet.parse("0-3")
    of = node()
    some = replace(of, kernel=replace(of.kernel, memory_nodes=NumaSet.of(0, 2)))
    _, desired_by_path = admitted(pod("g"), of=some)
    assert desired_by_path["shared/pool/payload/besteffort/poduid-g/app"].get(Attribute.CPUSET_MEMS) is None
    assert desired_by_path[POOL].get(Attribute.CPUSET_MEMS) == NumaSet.of(0, 2)


# Quota (D15; spec of kubelet's CFS quota)

PLRM = (("PodLevelResources", True), ("PodLevelResourceManagers", True))
NO_GATE = (("DisableCPUQuotaWithExclusiveCPUs", False),)


@pytest.mark.parametrize(
    ("resources", "settings", "of_pod", "of_container"),
    [
        pytest.param(exclusive("2"), {}, NONE, NONE, id="exclusive: none, and none above it"),
        pytest.param(exclusive("1500m"), {}, quota(1.5), quota(1.5), id="a fraction: its limit"),
        pytest.param(limited("1", "3"), {}, quota(3), quota(3), id="burstable: its limit"),
        pytest.param(limited("1", None), {}, NONE, NONE, id="no limit"),
        pytest.param(ResourceRequirements(), {}, NONE, NONE, id="best effort"),
        pytest.param(limited("1m", "1m"), {}, CpuMax(1000, 100_000), CpuMax(1000, 100_000), id="the kernel's least"),
        pytest.param(exclusive("2"), {"gates": NO_GATE}, quota(2), quota(2), id="exclusive, gate off: its limit"),
        pytest.param(exclusive("1500m"), {"config": {"cpu_cfs_quota": False}}, NONE, NONE, id="cpuCFSQuota: false"),
        pytest.param(
            exclusive("1500m"),
            {"config": {"cpu_cfs_quota_period_us": 20_000}},
            CpuMax(30_000, 20_000),
            CpuMax(30_000, 20_000),
            id="another period",
        ),
        pytest.param(
            exclusive("2"),
            {"cpu_manager_policy": "none", "reserved_system_cpus": CpuSet()},
            quota(2),
            quota(2),
            id="policy none: nobody is exclusive",
        ),
    ],
)
def test_quota(
    resources: ResourceRequirements, settings: Mapping[str, Any], of_pod: CpuMax, of_container: CpuMax
) -> None:
    _agent, desired_by_path = admitted(pod("q", app(resources=resources)), of=node(**settings))
    path = next(path for path in desired_by_path if path.endswith("poduid-q/app"))
    assert desired_by_path[path].get(Attribute.CPU_MAX) == of_container
    assert desired_by_path[path.rpartition("/")[0]].get(Attribute.CPU_MAX) == of_pod


def test_one_exclusive_container_lifts_the_pods_quota_but_not_its_neighbours() -> None:
    _, desired_by_path = admitted(pod("q", app("x", cpu="2"), app("s", cpu="1500m")))
    assert desired_by_path["poduid-q"].get(Attribute.CPU_MAX) == NONE
    assert desired_by_path["poduid-q/x"].get(Attribute.CPU_MAX) == NONE
    assert desired_by_path["poduid-q/s"].get(Attribute.CPU_MAX) == quota(1.5)


def test_an_exclusive_init_container_lifts_the_pods_quota() -> None:
    _, desired_by_path = admitted(pod("q", init(cpu="2"), app(cpu="1500m")))
    assert desired_by_path["poduid-q"].get(Attribute.CPU_MAX) == NONE


def test_a_pod_without_a_limit_in_every_container_has_none() -> None:
    _, desired_by_path = admitted(
        pod("q", app("x", resources=limited("1", "2")), app("y", resources=limited("1", None)))
    )
    assert desired_by_path["shared/pool/payload/burstable/poduid-q"].get(Attribute.CPU_MAX) == NONE
    assert desired_by_path["shared/pool/payload/burstable/poduid-q/x"].get(Attribute.CPU_MAX) == quota(2)


def pod_level(*containers: Any, cpu: str) -> Pod:
    return pod("q", *containers, resources=exclusive(cpu, "256Mi"))


def pod_level_node() -> Node:
    return node(gates=PLRM, topology_manager_policy="restricted", topology_manager_scope="pod")


@pytest.mark.parametrize(
    ("own_limit", "expected"),
    [
        pytest.param(None, quota(4), id="its pool of 4, less than the pod's 6"),
        pytest.param("1500m", quota(1.5), id="its own limit"),
        pytest.param("5", quota(5), id="its own limit, though the pool is smaller"),
    ],
)
def test_quota_in_a_pods_own_pool(own_limit: str | None, expected: CpuMax) -> None:
    shared = app("s", resources=limited("500m", own_limit))
    agent, desired_by_path = admitted(pod_level(app("x", cpu="2"), shared, cpu="6"), of=pod_level_node())
    assert agent.state.entries[0].refusal is None
    assert len(desired_by_path["poduid-q/s"].cpus()) == 4
    assert desired_by_path["poduid-q/s"].get(Attribute.CPU_MAX) == expected
    assert desired_by_path["poduid-q/x"].get(Attribute.CPU_MAX) == NONE
    assert desired_by_path["poduid-q"].get(Attribute.CPU_MAX) == quota(6), "not all of its containers are exclusive"


def test_a_pods_own_pool_is_nobody_elses() -> None:
    _, desired_by_path = admitted(pod_level(app("x", cpu="2"), app("s"), cpu="6"), pod("e"), of=pod_level_node())
    pool = desired_by_path["poduid-q/s"]
    assert pool.is_exclusive
    assert pool.shares_with == "poduid-q/"
    assert desired_by_path[POOL].cpus().isdisjoint(pool.cpus() | desired_by_path["poduid-q/x"].cpus())


def test_a_pod_level_pod_of_exclusive_containers_has_no_quota() -> None:
    _, desired_by_path = admitted(pod_level(app("x", cpu="2"), app("y", cpu="4"), cpu="6"), of=pod_level_node())
    assert desired_by_path["poduid-q"].get(Attribute.CPU_MAX) == NONE


def test_a_container_without_a_limit_has_its_pods() -> None:
    """KEP-2837 without the managers: everybody is in the shared pool."""
    _, desired_by_path = admitted(pod_level(app("s", resources=limited("500m", None)), cpu="2"))
    assert desired_by_path["poduid-q/s"].get(Attribute.CPU_MAX) == quota(2)
    assert desired_by_path["poduid-q"].get(Attribute.CPU_MAX) == quota(2)


# Weights and memory


@pytest.mark.parametrize(
    ("path", "attribute", "value"),
    [
        ("burstable", Attribute.CPU_WEIGHT, 1),
        ("besteffort", Attribute.CPU_WEIGHT, 1),
        ("shared", Attribute.CPU_WEIGHT, 174),
        ("shared/pool", Attribute.CPU_WEIGHT, None),
        ("shared/pool/payload/burstable", Attribute.CPU_WEIGHT, 174),
        ("shared/pool/payload/besteffort", Attribute.CPU_WEIGHT, 1),
        ("shared/pool/payload/burstable/poduid-b", Attribute.CPU_WEIGHT, 100),
        ("shared/pool/payload/burstable/poduid-b/app", Attribute.CPU_WEIGHT, 100),
        ("shared/pool/payload/besteffort/poduid-e/app", Attribute.CPU_WEIGHT, 1),
        ("poduid-g/app", Attribute.CPU_WEIGHT, 174),
        ("poduid-g", Attribute.MEMORY_MAX, ByteLimit(64 * 2**20)),
        ("poduid-g/app", Attribute.MEMORY_MAX, ByteLimit(64 * 2**20)),
        ("shared/pool/payload/burstable/poduid-b/app", Attribute.MEMORY_MAX, ByteLimit(None)),
        ("shared/pool/payload/besteffort/poduid-e", Attribute.MEMORY_MAX, ByteLimit(None)),
        ("poduid-g/app", Attribute.MEMORY_OOM_GROUP, True),
        ("poduid-g", Attribute.MEMORY_OOM_GROUP, None),
    ],
)
def test_values(path: str, attribute: Attribute, value: Value | None) -> None:
    one = app(resources=burstable("1"))
    _, desired_by_path = admitted(pod("g", app(cpu="2")), pod("b", one), pod("c", one), pod("e"))
    assert desired_by_path[path].get(attribute) == value


@pytest.mark.parametrize(("limit", "held"), [("10000", 2 * PAGE), ("8192", 8192), ("1Gi", GIB)])
def test_a_memory_limit_is_what_the_kernel_will_hold(limit: str, held: int) -> None:
    """page_counter rounds down to pages: any other amount would be written again in every turn."""
    machine, agent = started(node(), pod("m", app(resources=ResourceRequirements(limits=amounts(None, limit)))))
    path = next(w.path for w in agent.desired_cgroups() if w.path.endswith("/app"))
    assert machine.groups[path].values[Attribute.MEMORY_MAX] == ByteLimit(held)


@pytest.mark.parametrize(
    ("behavior", "limit"), [("NoSwap", ByteLimit(0)), ("LimitedSwap", ByteLimit(0)), ("UnlimitedSwap", ByteLimit(None))]
)
def test_containers_of_every_class_may_use_swap_or_may_not(behavior: str, limit: ByteLimit) -> None:
    pods = (pod("g", app(cpu="2")), pod("b", app(resources=burstable("1"))), pod("e"))
    _, desired_by_path = admitted(*pods, of=node(config={"swap_behavior": behavior}))
    found = {path: want.get(Attribute.MEMORY_SWAP_MAX) for path, want in desired_by_path.items()}
    assert found == {path: limit if path.endswith("/app") else None for path in desired_by_path}


@pytest.mark.parametrize(
    ("configured", "limit"), [({}, 4096), ({"pod_pids_limit": 20}, 20), ({"pod_pids_limit": -1}, None)]
)
def test_a_pod_of_every_class_has_a_bound_on_its_processes(configured: dict[str, int], limit: int | None) -> None:
    pods = (pod("g", app(cpu="2")), pod("b", app(resources=burstable("1"))), pod("e"))
    of = node(config=configured)
    agent, desired_by_path = admitted(*pods, of=of)
    assert all(want.get(Attribute.PIDS_MAX) is None for want in desired_by_path.values()), "the pods' unit has no pids"
    kernel = replace(of.kernel, extra_controllers=frozenset({"pids"}))
    desired_by_path = {want.path: want for want in desired_cgroups(of.config, of.managers, kernel, agent.state)}
    found = {path: want.get(Attribute.PIDS_MAX) for path, want in desired_by_path.items()}
    assert len(found) > 3
    of_pods = {path for path in found if path.rpartition("/")[2].startswith("poduid-")}
    assert found == {path: TaskLimit(limit) if path in of_pods else None for path in found}


def test_the_class_decided_at_admission_keeps_the_path() -> None:
    agent, _ = admitted(pod("g", app(cpu="2"), given_qos=QosClass.BURSTABLE))
    assert [w.path for w in agent.desired_cgroups()][-1] == "shared/pool/payload/burstable/poduid-g/app"


def test_every_wish_is_for_a_path_once() -> None:
    _, agent = started(node(), *(pod(f"p{n}", init(), sidecar(), app()) for n in range(5)))
    paths = [w.path for w in agent.desired_cgroups()]
    assert len(paths) == len(set(paths))
    for path in paths:
        above = path.rpartition("/")[0]
        assert paths.index(above) <= paths.index(path), "parents before children"


def test_a_machine_with_more_pods_than_cpus_starts_them_all() -> None:
    machine = Machine(node(SMALL))
    agent = Agent(machine)
    agent.want(*(pod(f"p{n}") for n in range(60)))
    agent.rest()
    assert len(machine.running_containers()) == 60
