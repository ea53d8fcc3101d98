"""Settings of quiet cores, and the decisions on settings of one CPU."""

import pytest
from msgspec.structs import replace

from nodeagent.core.host.quiet import QuietCores, list_quiet_settings
from nodeagent.core.host.settings import Change, Cpus, HostPlan, Setting, SettingKind, plan_settings
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.quiet import Profile, QuietRequest, QuietSettings
from nodeagent.core.model.state import NodeState, Origin
from nodeagent.core.turn.pod_sources import Manifest, new_entry
from nodeagent.formats.topology.topology_spec import topology_from_spec
from tests.support.builders import admitted
from tests.support.pods import app, pod
from tests.support.world import node

LATENCY = Setting(SettingKind.IDLE_LATENCY, "2")
CPUS = Cpus(CpuSet.parse("0-3"), CpuSet.parse("0-1"))


def plan(record: dict, now: str | None, wanted: str | None) -> tuple:
    planned = plan_settings(
        record,
        {} if now is None else {LATENCY: now},
        to_avoid={},
        cpus=CPUS,
        values={} if wanted is None else {LATENCY: wanted},
    )
    return dict(planned.record), dict(planned.writes), dict(planned.changed_by_others)


def test_siblings_are_quiet_too() -> None:
    topology = topology_from_spec("2c.2t")
    sibling = next(core for core in topology.cores.values() if 1 in core)
    assert len(sibling) == 2
    asked = QuietSettings(5, "performance", 800, 2400, boost=False)
    values = {
        SettingKind.IDLE_LATENCY: "5",
        SettingKind.GOVERNOR: "performance",
        SettingKind.MIN_FREQUENCY: "800000",
        SettingKind.MAX_FREQUENCY: "2400000",
        SettingKind.BOOST: "0",
    }
    assert list_quiet_settings(topology, CpuSet.of(1), asked) == {
        Setting(kind, str(cpu)): value for cpu in sibling for kind, value in values.items()
    }
    assert list_quiet_settings(topology, CpuSet.of(1), QuietSettings(boost=True)) == {}
    assert list_quiet_settings(topology, CpuSet(), asked, machine_wide_boost=True) == {}


def test_a_settings_of_a_request_replace_those_of_its_profile() -> None:
    profiles = (("fast", Profile(QuietSettings(idle_latency_us=2, boost=False))),)
    settings = QuietRequest("fast", QuietSettings(governor="powersave", boost=True)).resolve(profiles)
    assert settings == QuietSettings(idle_latency_us=2, governor="powersave", boost=True)
    assert QuietRequest("slow").resolve(profiles) is None


def test_it_is_recorded_before_it_is_written_and_restored_after() -> None:
    record, writes, _ = plan({}, "0", "5")
    assert record == {LATENCY: Change("0", ("5", "0"))}
    assert writes == {LATENCY: "5"}
    # a crash leaves either value, and both are the agent's
    for now in ("0", "5"):
        assert plan(record, now, None)[1:] == ({} if now == "0" else {LATENCY: "0"}, {})
        assert plan(record, now, "5")[0][LATENCY].before == "0"
    assert plan({LATENCY: Change("0", ("5",))}, "0", None) == ({}, {}, {LATENCY: "0"})


def test_another_programs_value_is_restored() -> None:
    record, writes, others = plan({LATENCY: Change("0", ("5",))}, "70", "5")
    assert (record, writes, others) == ({LATENCY: Change("70", ("5", "70"))}, {LATENCY: "5"}, {LATENCY: "70"})


def test_it_stays_in_the_record_while_its_cpu_is_away() -> None:
    known = {LATENCY: Change("0", ("5",))}
    assert plan(known, None, None) == (known, {}, {})


@pytest.mark.parametrize(
    ("kind", "before", "requested", "wanted"),
    [
        (SettingKind.IDLE_LATENCY, "0", "5", "5"),
        (SettingKind.IDLE_LATENCY, "70", "5", "5"),
        (SettingKind.IDLE_LATENCY, "2", "5", "2"),
        (SettingKind.IDLE_LATENCY, "n/a", "5", "n/a"),
        (SettingKind.MIN_FREQUENCY, "800000", "2400000", "2400000"),
        (SettingKind.MIN_FREQUENCY, "2600000", "2400000", "2600000"),
        (SettingKind.MAX_FREQUENCY, "3500000", "2400000", "2400000"),
        (SettingKind.MAX_FREQUENCY, "1800000", "2400000", "1800000"),
        (SettingKind.GOVERNOR, "performance", "powersave", "powersave"),
    ],
)
def test_a_stricter_limit_stays(kind: SettingKind, before: str, requested: str, wanted: str) -> None:
    setting = Setting(kind, "2")
    record = {setting: Change(before, ("1000000",))}
    for known, now in (({}, before), (record, "1000000")):
        planned = plan_settings(known, {setting: now}, to_avoid={}, cpus=CPUS, values={setting: requested})
        assert planned.writes.get(setting, now) == wanted


def test_a_frequency_is_written_until_that_is_recorded() -> None:
    """Its file may show another value than the one written."""
    limit = Setting(SettingKind.MAX_FREQUENCY, "2")

    def plan_limit(record: dict, now: str, wanted: str | None) -> HostPlan:
        values = {} if wanted is None else {limit: wanted}
        return plan_settings(record, {limit: now}, to_avoid={}, cpus=CPUS, values=values)

    first = plan_limit({}, "3500000", "2400000")
    assert (first.record, first.writes) == ({limit: Change("3500000", ("2400000", "3500000"))}, {limit: "2400000"})
    for now in ("3500000", "2350000"):  # a crash before and after the write
        assert plan_limit(dict(first.record), now, "2400000").writes == {limit: "2400000"}
        assert plan_limit(dict(first.record), now, None).writes == {limit: "3500000"}
    done = first.after(frozenset())
    again = plan_limit(dict(done), "2350000", "2400000")
    assert (again.record, again.writes, again.changed_by_others) == (done, {}, {})
    back = plan_limit(dict(done), "2350000", None)
    assert (back.writes, back.after(frozenset())) == ({limit: "3500000"}, {})


def test_settings_of_unchanged_pods_are_kept() -> None:
    machine = topology_from_spec("2c.2t")
    of_node = node(machine)
    still = pod("still", app("app", "2"), quiet=QuietRequest("quiet"))
    loud = pod("loud", app("app", "1"))
    entries = tuple(new_entry(Manifest(one, Origin(one.name)), 0, pod_level_resources=False) for one in (still, loud))
    state = NodeState(admitted(of_node.managers, still, loud), entries)
    first = QuietCores().follow(state, machine, of_node.config)
    assert len(first.values) == 4
    assert first.follow(state, machine, of_node.config) is first
    other = first.follow(state, machine, replace(of_node.config, machine_wide_boost=True))
    assert other.values == first.values
    assert first.follow(replace(state, entries=()), machine, of_node.config).values == {}


def test_a_refused_write_leaves_the_value_found() -> None:
    planned = plan_settings({}, {LATENCY: "0"}, to_avoid={}, cpus=CPUS, values={LATENCY: "5"})
    assert planned.after({LATENCY}) == {}
    assert planned.after(frozenset()) == {LATENCY: Change("0", ("5",))}
    assert planned.without({LATENCY}).record == {}
