"""Pods that give back what they were promised while none of their units is active."""

import pytest

from nodeagent.core.model.cgroup import Attribute, UnitSettings
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import Idle, PodEntry
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.turn.world import EventKind
from nodeagent.daemon.reports.problems import describe_waiting_units
from tests.support.node_model import Agent, Machine, Unit, started
from tests.support.pods import app, burstable, pod, unit
from tests.support.world import SMALL, node

NODE = node(SMALL)
"""8 CPUs, of which CPU 0 is reserved: 7 can be exclusive."""
ALL = CpuSet.parse("0-7")
BEFORE = UnitSettings(CpuSet.parse("0-3"), NumaSet.of(0))
DB = "units/poduid-db/db.service"


def db(cpu: str = "5", name: str = "db", **more: object) -> Pod:
    return pod(name, unit(cpu=cpu), gives_back=True, **more)


def begun(*pods: Pod, is_active: bool = True) -> tuple[Machine, Agent]:
    units = {"db.service": Unit(BEFORE, is_active), "web.service": Unit(is_active=is_active)}
    return started(NODE, *pods, units=units)


def entry(agent: Agent, name: str = "db") -> PodEntry:
    return next(e for e in agent.state.entries if e.pod.name == name)


def own(agent: Agent, name: str = "db") -> CpuSet | None:
    return own_set_of(agent.state.promises, f"uid-{name}", name)


def told(machine: Machine, name: str = "db.service") -> CpuSet:
    return machine.units[name].settings.allowed_cpus


def waits(agent: Agent) -> str | None:
    refusal = entry(agent).idle_refusal
    return None if refusal is None else refusal.reason


def test_while_its_unit_is_active_it_is_as_any_other() -> None:
    machine, agent = begun(db())
    assert (entry(agent).idle, len(own(agent) or ()), told(machine)) == (None, 5, own(agent))


def test_one_that_keeps_its_cpus_does_so_whatever_its_unit_does() -> None:
    machine, agent = begun(pod("db", unit(cpu="5")), is_active=False)
    assert (entry(agent).idle, told(machine)) == (None, own(agent))


def test_others_may_have_its_cpus_and_its_unit_would_start_in_the_shared_pool() -> None:
    machine, agent = begun(db())
    machine.units["db.service"].is_active = False
    agent.rest()
    assert (entry(agent).idle, own(agent), told(machine)) == (Idle(), None, ALL)
    agent.want(db(), pod("a", app(cpu="6")))
    agent.rest()
    assert told(machine) == ALL - (own_set_of(agent.state.promises, "uid-a", "app") or ALL)
    assert [kind for kind, _ in agent.event_names() if kind.startswith("pod_r")] == ["pod_rested"]


def test_it_has_them_again_once_its_unit_is_active() -> None:
    machine, agent = begun(db(), pod("s", app()))
    machine.units["db.service"].is_active = False
    agent.rest()
    machine.units["db.service"].is_active = True
    agent.rest()
    assert (entry(agent).idle, len(own(agent) or ()), told(machine)) == (None, 5, own(agent))
    assert machine.effective("shared/pool/payload/besteffort/poduid-s/app") == ALL - told(machine)
    assert [kind for kind, _ in agent.event_names() if kind.startswith("pod_r")] == ["pod_rested", "pod_resumed"]


def test_without_room_it_shares_says_so_once_and_comes_when_there_is_some() -> None:
    machine, agent = begun(db())
    machine.units["db.service"].is_active = False
    agent.rest()
    agent.want(db(), pod("a", app(cpu="6")))
    agent.rest()
    machine.units["db.service"].is_active = True
    agent.settle()
    others = own_set_of(agent.state.promises, "uid-a", "app") or CpuSet()
    assert (waits(agent), told(machine)) == ("OutOfcpu", ALL - others)
    assert len([*agent.reported(EventKind.RESUME_REFUSED)]) == 1
    (problem,) = describe_waiting_units(agent.state)
    assert problem.startswith(
        "no room for pod default/db, which released its CPUs while db.service was inactive: OutOfcpu: "
    )
    agent.restart()
    agent.settle()
    assert len([*agent.reported(EventKind.RESUME_REFUSED)]) == 1, "nor once more by another process"
    agent.want(db())
    agent.settle()
    assert (waits(agent), entry(agent).idle, told(machine)) == (None, None, own(agent))
    assert [*describe_waiting_units(agent.state)] == []


def test_without_more_room_it_is_not_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, agent = begun(db())
    machine.units["db.service"].is_active = False
    agent.rest()
    agent.want(db(), pod("a", app(cpu="6")))
    agent.rest()
    machine.units["db.service"].is_active = True
    agent.settle()
    assert waits(agent) == "OutOfcpu"
    decided: list[object] = []
    with monkeypatch.context() as watching:
        watching.setattr("nodeagent.core.turn.idle.decide_pod", lambda *arguments: decided.append(arguments))
        for _ in range(3):
            agent.turn()
    assert decided == []


def test_a_unit_that_ends_again_waits_for_nothing() -> None:
    machine, agent = begun(db(), is_active=False)
    agent.want(db(), pod("a", app(cpu="6")))
    agent.rest()
    machine.units["db.service"].is_active = True
    agent.settle()
    assert waits(agent) == "OutOfcpu"
    machine.units["db.service"].is_active = False
    agent.settle()
    assert entry(agent).idle == Idle()


def test_it_comes_before_new_pods_and_after_those_that_go() -> None:
    machine, agent = begun(db(), is_active=False)
    agent.want(db(), pod("a", app(cpu="6")))
    agent.settle()
    machine.units["db.service"].is_active = True
    agent.want(db(), pod("b", app(cpu="6")))
    agent.settle()
    assert (entry(agent).idle, entry(agent, "b").refusal and "OutOfcpu") == (None, "OutOfcpu")


def test_it_is_admitted_only_where_it_fits_and_rests_at_once() -> None:
    _, agent = begun(db(), is_active=False)
    assert (entry(agent).refusal, entry(agent).idle, own(agent)) == (None, Idle(), None)
    _, agent = begun(db("9"), is_active=False)
    assert entry(agent).refusal is not None


def test_a_unit_that_systemd_does_not_know_is_not_active() -> None:
    machine, agent = started(NODE, db())
    assert entry(agent).idle == Idle()
    machine.units["db.service"] = Unit(BEFORE)
    agent.rest()
    assert (entry(agent).idle, told(machine)) == (None, own(agent))
    machine.units.pop("db.service")
    agent.rest()
    assert (entry(agent).idle, entry(agent).containers[0].unit_before) == (Idle(), BEFORE)


def test_all_units_of_a_pod_have_to_be_inactive_and_one_that_starts_is_enough() -> None:
    both = pod("db", unit("db.service", "2"), unit("web.service", "2"), gives_back=True)
    machine, agent = begun(both)
    machine.units["db.service"].is_active = False
    agent.rest()
    assert entry(agent).idle is None
    machine.units["web.service"].is_active = False
    agent.rest()
    assert (entry(agent).idle, told(machine), told(machine, "web.service")) == (Idle(), ALL, ALL)
    machine.units["web.service"].is_active = True
    agent.rest()
    assert entry(agent).idle is None


def test_a_unit_that_shares_gives_back_nothing_that_counts() -> None:
    machine, agent = begun(pod("db", unit(resources=burstable()), gives_back=True), is_active=False)
    assert (entry(agent).idle, told(machine)) == (Idle(), ALL)


@pytest.mark.parametrize("what", ["unpinned", "released"])
def test_it_is_given_back_to_the_host_as_any_other(what: str) -> None:
    machine, agent = begun(db(), is_active=False)
    if what == "unpinned":
        agent.want()
    else:
        agent.released = frozenset({"uid-db"})
    agent.rest()
    assert machine.units["db.service"].settings == BEFORE
    assert [e.pod.name for e in agent.state.entries if e.is_active] == []


def test_while_the_unit_cannot_be_told_to_leave_nobody_has_the_cpus_that_it_gave_back() -> None:
    """It may start at any moment, on what systemd was told last."""
    machine, agent = begun(db())
    machine.units["db.service"].is_active = False
    machine.broken[DB, Attribute.CPUSET_CPUS] = "systemd has not answered for 5 s"
    agent.want(db(), pod("a", app(cpu="6")))
    agent.rest()
    assert (entry(agent).idle, machine.starts) == (Idle(), [])
    machine.units["db.service"].is_active = True
    agent.check()
    machine.units["db.service"].is_active = False
    machine.broken.clear()
    agent.rest()
    assert (told(machine) & (own_set_of(agent.state.promises, "uid-a", "app") or ALL), len(machine.starts)) == (
        CpuSet(),
        1,
    )
