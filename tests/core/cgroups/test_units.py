"""Units of systemd's among the cgroups: what they should hold, who leaves and comes when, and what is never done to them."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.closing import Why, find_closings
from nodeagent.core.cgroups.desired_cgroups import desired_cgroups
from nodeagent.core.cgroups.write_order import Change, GiveUnitBack, MakeCgroup, Plan, SetAttribute, diff
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup, ObservedCgroup, UnitSettings
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES, POOL
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of
from nodeagent.core.resources.memory.holdings import memory_nodes_of
from nodeagent.daemon.reports.problems import describe_units_without_cpus
from nodeagent.daemon.turn.execution import execute, unvacated_cpus
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from tests.support.builders import GIB
from tests.support.node_model import Agent, Machine, Unit, started
from tests.support.pods import app, burstable, pod, unit
from tests.support.world import MACHINE, SMALL, Node, node

DB = "units/poduid-db/db.service"
POD = "poduid-a/app"
ALL = CpuSet.parse("0-7")
UNRESTRICTED = UnitSettings()


def begun(*pods: Pod, of: Node | None = None, **units: Unit) -> tuple[Machine, Agent]:
    """With a unit db.service that runs everywhere."""
    return started(of or node(SMALL), *pods, units={"db.service": Unit(), "web.service": Unit(), **units})


def wanted(agent: Agent, path: str = DB) -> DesiredCgroup:
    return next(want for want in agent.desired_cgroups() if want.path == path)


def static_memory() -> Node:
    return node(MACHINE, memory_manager_policy="Static", topology_manager_policy="restricted")


# What it should hold


def test_one_with_cpus_of_its_own_holds_these_and_nothing_else_is_desired() -> None:
    _, agent = begun(pod("db", unit(cpu="2")))
    own = own_set_of(agent.state.promises, "uid-db", "db")
    assert {w.path for w in agent.desired_cgroups()} == {"", *OWN_DIRECTORIES, DB}
    assert wanted(agent) == DesiredCgroup(
        DB,
        attributes=((Attribute.CPUSET_CPUS, own), (Attribute.CPUSET_MEMS, NumaSet.of(0))),
        exclusive_cpus=own or CpuSet(),
        shares_with="units/poduid-db/",
        is_leaf=True,
        meanwhile=ALL - (own or CpuSet()),
    )


def test_one_that_shares_is_in_the_pool() -> None:
    _, agent = begun(pod("db", unit(resources=burstable())), pod("a", app(cpu="2")))
    assert wanted(agent).cpus() == default_set(agent.state.promises) == ALL - wanted(agent, POD).cpus()
    assert not wanted(agent).is_exclusive


def test_a_mixed_one_has_both() -> None:
    _, agent = begun(pod("db", unit(cpu="2500m", exclusive_cpus=2)))
    own = own_set_of(agent.state.promises, "uid-db", "db")
    assert own is not None
    assert (len(own), wanted(agent).exclusive_cpus, wanted(agent).cpus()) == (2, own, ALL)


def test_one_that_has_not_been_seen_is_not_desired() -> None:
    _, agent = started(node(SMALL), pod("db", unit(cpu="2")))
    assert len(own_set_of(agent.state.promises, "uid-db", "db") or ()) == 2, "but its CPUs are kept for it"
    assert DB not in [w.path for w in agent.desired_cgroups()]


def test_one_that_is_being_given_back_wants_nothing_but_what_it_had() -> None:
    before = UnitSettings(CpuSet.parse("0-3"), NumaSet.of(0))
    machine, agent = begun(pod("db", unit(cpu="2")), **{"db.service": Unit(before)})
    machine.broken[DB, GiveUnitBack] = "systemd is busy"
    agent.want()
    agent.turn()
    assert wanted(agent) == DesiredCgroup(DB, is_leaf=True, goes_back_to=before)


def test_one_whose_cpus_are_offline_shares() -> None:
    _, agent = begun(pod("db", unit(cpu="2")))
    of = agent.machine.node
    own = wanted(agent).cpus()
    kernel = replace(of.kernel, online=ALL - own)
    want = {w.path: w for w in desired_cgroups(of.config, of.managers, kernel, agent.state)}[DB]
    assert (want.cpus(), want.exclusive_cpus) == (default_set(agent.state.promises), CpuSet())
    kernel = replace(of.kernel, online=ALL - CpuSet.of(min(own)))
    want = {w.path: w for w in desired_cgroups(of.config, of.managers, kernel, agent.state)}[DB]
    assert want.cpus() == want.exclusive_cpus == CpuSet.of(max(own)), "one of them is left"


def test_without_a_pool_it_is_on_the_reserved_cpus_and_goes_on() -> None:
    strict = node(SMALL, cpu_manager_policy_options=(("strict-cpu-reservation", "true"),))
    strict = replace(strict, config=replace(strict.config, check_allocatable=False))
    _, agent = begun(pod("db", unit(resources=burstable())), pod("a", app(cpu="7")), of=strict)
    assert default_set(agent.state.promises) == CpuSet()
    want = wanted(agent)
    assert (want.cpus(), want.is_starved, want.is_exclusive) == (CpuSet.of(0), False, False)


def test_without_any_shared_cpu_nothing_is_asked_of_systemd_and_where_it_is_stays_taken() -> None:
    """An empty set would be no restriction. Where it runs is the kernel's to say then: nobody is given that."""
    strict = node(SMALL, cpu_manager_policy_options=(("strict-cpu-reservation", "true"),))
    strict = replace(strict, config=replace(strict.config, check_allocatable=False))
    machine, agent = begun(pod("db", unit(resources=burstable())), pod("a", app(cpu="7")), of=strict)
    kernel = replace(strict.kernel, online=ALL - CpuSet.of(0))
    desired = desired_cgroups(strict.config, strict.managers, kernel, agent.state)
    want = {w.path: w for w in desired}[DB]
    assert want.attributes == ((Attribute.CPUSET_MEMS, NumaSet.of(0)),)
    assert describe_units_without_cpus(desired).startswith("no CPU is left for db.service: ")
    assert describe_units_without_cpus(agent.desired_cgroups()) == ""
    there = replace(machine.observed_unit("db.service", DB), cpus_effective=CpuSet.parse("1-7"))
    plan = diff((want, leaf(POD, "6-7", is_exclusive=True)), {DB: there})
    assert [change for change in plan.changes if change.path == DB] == []
    assert plan.occupied == CpuSet.parse("1-7")


@pytest.mark.parametrize(
    ("more", "before", "mems"),
    [
        pytest.param({}, UNRESTRICTED, "0-3", id="nothing decided: all"),
        pytest.param({}, UnitSettings(CpuSet(), NumaSet.of(1)), "1", id="nothing decided: what it had"),
        pytest.param({}, UnitSettings(CpuSet(), NumaSet.of(9)), "0-3", id="what it had is not there"),
        pytest.param({"numa_node": 2}, UnitSettings(CpuSet(), NumaSet.of(1)), "2", id="asked for"),
    ],
)
def test_its_memory_nodes(more: dict[str, Any], before: UnitSettings, mems: str) -> None:
    _, agent = begun(pod("db", unit(cpu="2"), **more), of=node(MACHINE), **{"db.service": Unit(before)})
    assert wanted(agent).get(Attribute.CPUSET_MEMS) == NumaSet.parse(mems)


def test_memory_nodes_that_a_manager_has_decided_on_count() -> None:
    of = node(MACHINE, **static())
    before = Unit(UnitSettings(CpuSet(), NumaSet.of(1)))
    _, agent = begun(pod("db", unit(cpu="2", memory="1Gi"), numa_node=2), of=of, **{"db.service": before})
    assert memory_nodes_of(agent.state.promises, "uid-db", "db") == NumaSet.of(2)
    assert wanted(agent).get(Attribute.CPUSET_MEMS) == NumaSet.of(2)


def static() -> dict[str, Any]:
    from nodeagent.core.model.config import ReservedMemory
    from nodeagent.core.model.pod import Resources
    from nodeagent.core.model.quantity import Quantity

    amount = Resources.of({"memory": Quantity.of(GIB)})
    return {
        "memory_manager_policy": "Static",
        "reserved_memory": (ReservedMemory(0, amount),),
        "memory_reservation": amount,
    }


def test_it_is_in_no_partition() -> None:
    of = node(SMALL, config={"host_isolation": "partition"})
    machine, agent = begun(pod("db", unit(cpu="2")), pod("a", app(cpu="2")), of=of)
    assert wanted(agent).partition_cpus() == CpuSet()
    assert machine.partitions() == ("poduid-a",)
    (entry,) = (e for e in agent.state.entries if e.pod.name == "db")
    (closing,) = find_closings(of.config, of.managers, agent.state.promises, entry, has_partitions=True).values()
    assert (closing.why, closing.is_of_pod) == (Why.UNIT, False)


# The order of writes


def written(machine: Machine, since: int) -> list[tuple[str, CpuSet]]:
    return [
        (change.path, change.value)
        for change in machine.writes[since:]
        if isinstance(change, SetAttribute)
        and isinstance(change.value, CpuSet)
        and change.attribute is Attribute.CPUSET_CPUS
        if change.path in {DB, POD, POOL}
    ]


def test_a_unit_that_shares_leaves_before_a_pod_gets_the_cpus_and_comes_back_after_it() -> None:
    machine, agent = begun(pod("db", unit(resources=burstable())))
    since = len(machine.writes)
    agent.want(pod("db", unit(resources=burstable())), pod("a", app(cpu="2")))
    agent.rest()
    own = wanted(agent, POD).cpus()
    assert written(machine, since) == [(POOL, ALL - own), (DB, ALL - own), (POD, own)]
    since = len(machine.writes)
    agent.want(pod("db", unit(resources=burstable())))
    agent.settle()
    assert written(machine, since) == [(POOL, ALL), (DB, ALL)]


def test_a_pod_that_shares_leaves_before_a_unit_gets_the_cpus() -> None:
    machine, agent = begun(pod("s", app()))
    since = len(machine.writes)
    agent.want(pod("s", app()), pod("db", unit(cpu="2")))
    agent.rest()
    own = wanted(agent).cpus()
    *_, left, came = written(machine, since)
    assert (left, came) == ((POOL, ALL - own), (DB, own))


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="runs"),
        pytest.param({"is_frozen": True}, id="is frozen by others, who may thaw it"),
        pytest.param({"is_populated": False}, id="isn't active, and may start at any moment"),
    ],
)
def test_a_unit_that_does_not_leave_keeps_its_cpus_from_the_next(more: dict[str, bool]) -> None:
    desired = (leaf(DB, "0-5"), leaf(POD, "6-7", is_exclusive=True))
    plan = diff(desired, {DB: replace(seen(DB, ALL), **more)})
    departure, grant = (change for change in plan.changes if isinstance(change, SetAttribute))
    assert (departure.path, departure.vacates) == (DB, CpuSet.parse("6-7"))
    assert (grant.path, grant.grants) == (POD, CpuSet.parse("6-7"))
    outcome = execute(plan, desired, Refusing(departure))
    assert ([change for change, _ in outcome.failed], outcome.held_back) == ([departure], (grant,))
    assert outcome.ready == frozenset()


def test_a_unit_that_cannot_be_told_before_it_starts_holds_its_cpus_back() -> None:
    machine, agent = begun(pod("db", unit(resources=burstable())), **{"db.service": Unit(is_active=False)})
    machine.broken[DB, Attribute.CPUSET_CPUS] = "systemd has not answered for 5 s"
    agent.want(pod("db", unit(resources=burstable())), pod("a", app(cpu="2")))
    agent.rest()
    assert machine.starts == []
    machine.units["db.service"].is_active = True
    agent.check()
    machine.broken.clear()
    agent.rest()
    assert len(machine.starts) == 1


@pytest.mark.parametrize("is_active", [True, False])
def test_one_has_no_cpus_of_its_own_while_a_runtimes_container_is_on_them(*, is_active: bool) -> None:
    desired = (leaf(DB, "2-3", is_exclusive=True),)
    plan = diff(desired, {DB: replace(seen(DB, ALL), is_populated=is_active)})
    (grant,) = plan.changes
    outcome = execute(replace(plan, occupied=CpuSet.of(3)), desired, Refusing())
    assert (outcome.written, outcome.held_back, outcome.ready) == ((), (grant,), frozenset())
    assert unvacated_cpus(outcome) == ALL - CpuSet.parse("2-3"), "it is still where it was"
    assert execute(plan, desired, Refusing()).written == (grant,)


def test_two_that_are_on_each_others_cpus_wait_in_the_pool() -> None:
    web = "units/poduid-web/web.service"
    wants = (leaf(DB, "3", is_exclusive=True), leaf(web, "2", is_exclusive=True))
    desired = tuple(replace(want, meanwhile=CpuSet.parse("0-1")) for want in wants)
    there = {DB: seen(DB, CpuSet.of(2)), web: seen(web, CpuSet.of(3))}
    changes = planned(desired, there)
    told = [(change.path, str(change.value)) for change in changes if isinstance(change, SetAttribute)]
    assert told == [(DB, "0-1"), (web, "0-1"), (DB, "3"), (web, "2")]
    outcome = execute(diff(desired, there), desired, Refusing(changes[0]))
    assert outcome.held_back == (changes[2], changes[3]), (
        "neither is asked for more, nor let in, where the other still is"
    )


class Refusing:
    """A writer that fails at one change."""

    def __init__(self, broken: Change | None = None) -> None:
        self._broken = broken

    def apply(self, change: Change) -> None:
        if change == self._broken:
            raise CgroupError("systemd has not answered for 5 s", path=change.path, error=None, hint="wait")


def seen(path: str, cpus: CpuSet, *, unit: UnitSettings | None = UNRESTRICTED) -> ObservedCgroup:
    return ObservedCgroup(
        path,
        frozenset(),
        frozenset(),
        ((Attribute.CPUSET_CPUS, cpus),) if cpus else (),
        cpus or ALL,
        None,
        is_populated=bool(cpus),
        is_frozen=False,
        unit=unit,
    )


def leaf(path: str, text: str, *, is_exclusive: bool = False) -> DesiredCgroup:
    cpus = CpuSet.parse(text)
    return DesiredCgroup(
        path,
        attributes=((Attribute.CPUSET_CPUS, cpus),),
        exclusive_cpus=cpus if is_exclusive else CpuSet(),
        is_leaf=True,
    )


def planned(desired: tuple[DesiredCgroup, ...], observed: Mapping[str, ObservedCgroup]) -> tuple[Change, ...]:
    plan: Plan = diff(desired, observed)
    assert (plan.orphans, plan.occupied) == ((), CpuSet())
    return plan.changes


@pytest.mark.parametrize(
    ("want", "there"),
    [
        pytest.param((), {DB: seen(DB, ALL)}, id="one that nobody stands for any more is not removed"),
        pytest.param((), {DB: seen(DB, CpuSet())}, id="nor if it is empty"),
        pytest.param((leaf(DB, "2-3", is_exclusive=True),), {}, id="one that systemd does not know is not made"),
        pytest.param((DesiredCgroup(DB, is_leaf=True, goes_back_to=UNRESTRICTED),), {}, id="nor given back"),
        pytest.param(
            (DesiredCgroup(DB, is_leaf=True, goes_back_to=UNRESTRICTED),),
            {DB: seen(DB, ALL)},
            id="one that has what it goes back to is left alone",
        ),
        pytest.param(
            (leaf(DB, "2-3", is_exclusive=True),),
            {DB: replace(seen(DB, CpuSet.parse("2-3")), is_frozen=True)},
            id="one that others have frozen is not thawed",
        ),
    ],
)
def test_nothing_is_done(want: tuple[DesiredCgroup, ...], there: Mapping[str, ObservedCgroup]) -> None:
    assert planned(want, there) == ()


def test_one_that_others_have_moved_is_moved_back_and_not_frozen_meanwhile() -> None:
    changes = planned((leaf(DB, "2-3", is_exclusive=True),), {DB: seen(DB, CpuSet.parse("5-6"))})
    assert [(type(c), c.path) for c in changes] == [(SetAttribute, DB)]
    assert all(isinstance(c, SetAttribute) and c.attribute is Attribute.CPUSET_CPUS for c in changes)


@pytest.mark.parametrize(
    "before", [UNRESTRICTED, UnitSettings(CpuSet.parse("0-3"))], ids=["unrestricted", "restricted"]
)
def test_it_is_given_back_before_anybody_moves_while_it_differs(before: UnitSettings) -> None:
    held = seen(DB, CpuSet.parse("2-3"), unit=UnitSettings(CpuSet.parse("2-3")))
    want = (DesiredCgroup(DB, is_leaf=True, goes_back_to=before), leaf(POD, "2-3", is_exclusive=True))
    changes = planned(want, {DB: held})
    assert changes[:2] == (MakeCgroup(POD), GiveUnitBack(DB, before))
    assert [type(c) for c in planned(want, {DB: replace(held, unit=before)})] == [MakeCgroup, SetAttribute]
