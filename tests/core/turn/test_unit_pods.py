"""Pods that stand for units of systemd's (D30): when their units count, what they go back to, and that each unit has one pod at most."""

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import GiveUnitBack
from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import PodPromises
from nodeagent.core.model.refusals import UNIT_TAKEN
from nodeagent.core.model.state import Origin, Phase, PodEntry
from nodeagent.core.resources.cpu.holdings import CpuHoldings, own_set_of
from nodeagent.core.turn.adoption import AdmittedPod, find_admitted, find_populated_pods
from nodeagent.core.turn.pod_sources import new_entry
from nodeagent.core.turn.step import step
from tests.support.node_model import Agent, CrashError, Machine, Unit, started
from tests.support.pods import app, pod, unit
from tests.support.world import SMALL, START_MS, node

NODE = node(SMALL)
"""8 CPUs, of which CPU 0 is reserved: 7 can be exclusive."""
ALL = CpuSet.parse("0-7")
DB = "units/poduid-db/db.service"
BEFORE = UnitSettings(CpuSet.parse("0-3"), NumaSet.of(0))


def begun(*pods: Pod, before: UnitSettings = BEFORE) -> tuple[Machine, Agent]:
    return started(NODE, *pods, units={"db.service": Unit(before), "web.service": Unit()})


def db(name: str = "db", cpu: str = "2", **more: str) -> Pod:
    return pod(name, unit(cpu=cpu), **more)


def entry(agent: Agent, name: str = "db") -> PodEntry:
    return next(e for e in agent.state.entries if e.pod.name == name)


def before(agent: Agent, name: str = "db") -> UnitSettings | None:
    (status,) = entry(agent, name).containers
    return status.unit_before


def refused(agent: Agent) -> dict[str, str]:
    return {e.pod.name: e.refusal.reason for e in agent.state.entries if e.refusal is not None}


# From its first sight to its last


def test_what_it_had_is_saved_before_anything_is_written_to_it_and_never_again() -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    machine.units["db.service"] = Unit(BEFORE)
    agent.want(db())
    agent.dies_at = 1
    with pytest.raises(CrashError):
        agent.turn()
    assert machine.units["db.service"].settings == BEFORE
    agent.restart()
    assert before(agent) == BEFORE, "saved with the decision"
    agent.rest()
    assert machine.units["db.service"].settings.allowed_cpus == own_set_of(agent.state.promises, "uid-db", "db")
    agent.restart()
    agent.rest()
    assert before(agent) == BEFORE


@pytest.mark.parametrize("ends", [False, True], ids=["kept", "given back meanwhile"])
def test_a_boot_ends_what_was_recorded_of_it_with_everything_that_systemd_was_told(*, ends: bool) -> None:
    machine, agent = begun(db())
    own = own_set_of(agent.state.promises, "uid-db", "db")
    assert agent.state.units_boot_id == machine.boot_id
    machine.boot_id = "the next boot"
    of_its_file = UnitSettings(CpuSet.parse("0-5"))  # before the boot, others had narrowed it
    machine.units["db.service"] = Unit(of_its_file)
    agent.restart()
    if not ends:
        agent.rest()
        assert (before(agent), machine.units["db.service"].settings.allowed_cpus) == (of_its_file, own)
        assert agent.state.units_boot_id == machine.boot_id
    agent.want()
    agent.rest()
    assert (agent.state.entries, machine.units["db.service"].settings) == ((), of_its_file)


def test_one_that_systemd_does_not_know_yet_keeps_its_cpus_and_is_touched_once_it_is_seen() -> None:
    machine, agent = started(NODE, db())
    assert (before(agent), entry(agent).phase) == (None, Phase.RUNNING)
    own = own_set_of(agent.state.promises, "uid-db", "db")
    machine.units["db.service"] = Unit(BEFORE, is_active=False)
    agent.rest()
    assert (before(agent), machine.units["db.service"].settings.allowed_cpus) == (BEFORE, own)


def test_it_is_gone_when_it_is_given_back_and_whatever_runs_in_it_runs_on() -> None:
    machine, agent = begun(db())
    agent.want()
    agent.turn()
    assert (entry(agent).phase, machine.units["db.service"].settings) == (Phase.TERMINATING, BEFORE)
    assert agent.is_unsettled(), "that it has been given back is still to be seen"
    agent.turn()
    assert agent.state.entries == ()
    assert machine.units["db.service"] == Unit(BEFORE)
    assert machine.signals == machine.starts == []


def test_until_it_is_given_back_nobody_else_has_its_cpus() -> None:
    machine, agent = begun(db(cpu="5"))
    machine.broken[DB, GiveUnitBack] = "systemd has not answered for 5 s"
    agent.want(pod("a", app(cpu="5")))
    agent.rest()
    assert refused(agent) == {"a": "OutOfcpu"}
    assert entry(agent).phase is Phase.TERMINATING
    machine.broken.clear()
    agent.rest()
    assert [e.pod.name for e in agent.state.entries] == ["a"]


@pytest.mark.parametrize("is_seen", [True, False], ids=["it was there", "it never was"])
def test_one_that_systemd_no_longer_knows_needs_no_giving_back(*, is_seen: bool) -> None:
    machine, agent = begun(db()) if is_seen else started(NODE, db())
    machine.units.pop("db.service", None)
    since = len(machine.writes)
    agent.want()
    agent.turn()
    agent.turn()
    assert agent.state.entries == ()
    assert [change for change in machine.writes[since:] if change.path == DB] == []


def test_while_systemd_does_not_know_it_nothing_is_written_to_it_and_then_all_anew() -> None:
    machine, agent = begun(db())
    kept, own = machine.units.pop("db.service"), own_set_of(agent.state.promises, "uid-db", "db")
    assert kept.settings.allowed_cpus == own
    since = len(machine.writes)
    agent.rest()
    assert machine.writes[since:] == []
    assert own_set_of(agent.state.promises, "uid-db", "db") == own
    machine.units["db.service"] = Unit()
    agent.rest()
    assert (machine.units["db.service"].settings.allowed_cpus, before(agent)) == (own, BEFORE)


def test_a_release_gives_it_back_and_it_stays_with_the_host() -> None:
    machine, agent = begun(db())
    agent.released = frozenset({"uid-db"})
    agent.rest()
    assert (refused(agent), machine.units["db.service"].settings) == ({"db": "Released"}, BEFORE)


def test_other_amounts_move_it_and_what_it_had_first_counts() -> None:
    machine, agent = begun(db(uid="one"))
    agent.want(db(cpu="3", uid="two"))
    agent.rest()
    assert (entry(agent).pod.uid, before(agent)) == ("two", BEFORE)
    assert len(machine.units["db.service"].settings.allowed_cpus) == 3


# One pod for each unit


def test_the_second_pod_for_a_unit_is_refused_until_the_other_one_has_ended() -> None:
    machine, agent = begun(db())
    since = len(machine.writes)
    agent.want(db(), db("other"))
    agent.rest()
    refusal = entry(agent, "other").refusal
    assert refusal is not None
    assert (refusal.reason, refusal.message) == (UNIT_TAKEN, "pod default/db already pins unit db.service")
    assert machine.writes[since:] == []
    agent.want(db("other"))
    agent.rest()
    agent.retried = frozenset({entry(agent, "other").pod.uid})
    agent.rest()
    assert refused(agent) == {}, "once the other pod has ended"
    assert entry(agent, "other").phase is Phase.RUNNING


def test_a_pod_of_another_domain_takes_no_unit_of_systemd() -> None:
    _, agent = begun(db())
    other = replace(entry(agent), origin=Origin("db", domain="supervisor"))
    assert other.unit_keys == {("supervisor", "db.service")}
    agent.want(db("mine"))
    for there, admitted in ((entry(agent), False), (other, True)):
        decided = step(replace(agent.state, entries=(there,)), agent.world()).state
        assert any(one.pod.name == "mine" and one.is_active for one in decided.entries) is admitted


def test_of_two_at_once_the_first_has_it() -> None:
    _, agent = begun(db("b"), db("a"))
    assert refused(agent) == {"a": UNIT_TAKEN}


def test_a_refused_pod_takes_no_unit() -> None:
    _, agent = begun(db("big", cpu="9"), db())
    assert refused(agent) == {"big": "OutOfcpu"}


def test_a_change_to_anothers_unit_is_refused_and_the_pod_stays_as_it_is() -> None:
    machine, agent = begun(db(), pod("web", unit("web.service", "1"), uid="one"))
    since = len(machine.writes)
    agent.want(db(), pod("web", unit("db.service", "1"), uid="two"))
    agent.rest()
    web = entry(agent, "web")
    assert web.refused_change is not None
    assert (web.pod.uid, web.refused_change.refusal.reason) == ("one", UNIT_TAKEN)
    assert (web.refused_change.refusal.message, web.phase) == (
        "pod default/db already pins unit db.service",
        Phase.RUNNING,
    )
    assert machine.writes[since:] == []


def web(name: str, *units: str, cpu: str = "1", uid: str = "") -> Pod:
    return pod(name, *(unit(one, cpu) for one in units), uid=uid or f"uid-{name}")


def test_pods_that_swap_units_in_one_change_have_each_others_in_the_end() -> None:
    machine, agent = begun(web("a", "db.service"), web("b", "web.service"))
    agent.want(web("a", "web.service", uid="a2"), web("b", "db.service", uid="b2"))
    agent.rest()
    assert [(e.pod.name, e.pod.units, e.refused_change) for e in agent.state.entries] == [
        ("a", ("web.service",), None),
        ("b", ("db.service",), None),
    ]
    assert (before(agent, "a"), before(agent, "b")) == (UnitSettings(), BEFORE)
    assert machine.units["db.service"].settings.allowed_cpus == own_set_of(agent.state.promises, "b2", "db")


def test_who_stays_keeps_its_unit_and_so_whoever_wanted_that_stays_too() -> None:
    _, agent = begun(web("a", "db.service"), web("b", "web.service"))
    agent.want(web("a", "web.service", uid="a2"), web("b", "db.service", cpu="9", uid="b2"))
    agent.rest()
    refusals = {e.pod.name: e.change_refusal for e in agent.state.entries}
    assert {name: refusal and refusal.reason for name, refusal in refusals.items()} == {
        "a": UNIT_TAKEN,
        "b": "OutOfcpu",
    }
    assert {e.pod.name: e.pod.units for e in agent.state.entries} == {"a": ("db.service",), "b": ("web.service",)}


def test_of_two_changes_to_one_unit_the_first_is_followed() -> None:
    machine, agent = begun(web("a", "db.service"), web("b", "web.service"))
    machine.units["new.service"] = Unit()
    agent.want(web("a", "new.service", uid="a2"), web("b", "new.service", uid="b2"))
    agent.rest()
    assert {e.pod.name: e.pod.units for e in agent.state.entries} == {"a": ("new.service",), "b": ("web.service",)}
    assert entry(agent, "b").change_refusal is not None


def test_a_change_to_the_unit_of_a_pod_that_goes_waits_for_it() -> None:
    _, agent = begun(web("a", "db.service"), web("b", "web.service"))
    agent.want(web("b", "db.service", uid="b2"))
    agent.rest()
    assert [(e.pod.name, e.pod.units, e.refused_change) for e in agent.state.entries] == [("b", ("db.service",), None)]


def test_a_pod_that_keeps_its_unit_may_change() -> None:
    _, agent = begun(db(uid="one"))
    agent.want(db(cpu="1", uid="two"))
    agent.rest()
    assert (refused(agent), entry(agent).refused_change, entry(agent).pod.uid) == ({}, None, "two")


def test_a_new_pod_waits_until_its_unit_has_been_given_back() -> None:
    machine, agent = begun(db())
    machine.broken[DB, GiveUnitBack] = "systemd has not answered for 5 s"
    agent.want(db("other"))
    agent.rest()
    assert [(e.pod.name, e.phase) for e in agent.state.entries] == [("db", Phase.TERMINATING)], "nobody is refused"
    machine.broken.clear()
    agent.rest()
    assert [(e.pod.name, e.phase) for e in agent.state.entries] == [("other", Phase.RUNNING)]
    assert before(agent, "other") == BEFORE


# When the state is lost


def adopted(machine: Machine, *pods: Pod, recorded: dict[str, PodPromises] | None = None) -> tuple[AdmittedPod, ...]:
    agent = Agent(machine)
    agent.want(*pods)
    entries = [new_entry(m, START_MS, pod_level_resources=False) for m in agent.wanted]
    observed = agent.observed()
    assert not {path for path in find_populated_pods(observed) if path.startswith("units/")}
    return find_admitted(NODE.managers, entries, observed=observed, runs={}, recorded=recorded or {}, now_ms=START_MS)


def test_a_unit_with_the_cpus_of_a_lost_state_keeps_them_and_goes_back_to_what_is_recorded_of_it() -> None:
    machine, agent = begun(db())
    own = own_set_of(agent.state.promises, "uid-db", "db")
    (known,) = adopted(machine, db())
    assert (known.recovered.held.of(CpuHoldings).own_set("db"), known.recovered.stays) == (own, True)
    assert [status.unit_before for status in known.entry.containers] == [BEFORE]
    machine.units["db.service"].is_active = False
    (known,) = adopted(machine, db())
    assert (known.recovered.held.of(CpuHoldings).own_set("db"), known.recovered.stays) == (own, True), (
        "it isn't active, but has them"
    )


@pytest.mark.parametrize("settings", [UnitSettings(), BEFORE], ids=["unrestricted", "with CPUs by its own file"])
def test_a_unit_of_which_nothing_is_recorded_was_nobodys(settings: UnitSettings) -> None:
    machine = Machine(NODE)
    machine.units["db.service"] = Unit(settings)
    assert adopted(machine, db()) == ()


def test_of_two_pods_for_a_unit_one_is_adopted() -> None:
    machine, agent = begun(db())
    held = agent.state.promises.of_pod("uid-db")
    assert [known.entry.pod.name for known in adopted(machine, db("a"), db())] == ["a"]
    by_record = adopted(machine, db("a"), db(), recorded={"uid-db": held})
    assert [known.entry.pod.name for known in by_record] == ["db"], "a file says who it was"
