"""Settings of quiet cores, and the decisions on settings of one CPU."""

from nodeagent.core.host.quiet import QUIET, list_quiet_settings
from nodeagent.core.host.settings import Change, Cpus, Setting, SettingKind, plan_settings
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.topology.topology_spec import topology_from_spec

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
    assert list_quiet_settings(topology, CpuSet.of(1)) == {
        Setting(kind, str(cpu)): value for cpu in sibling for kind, value in QUIET.items()
    }


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


def test_a_refused_write_leaves_the_value_found() -> None:
    planned = plan_settings({}, {LATENCY: "0"}, to_avoid={}, cpus=CPUS, values={LATENCY: "5"})
    assert planned.after({LATENCY}) == {}
    assert planned.after(frozenset()) == {LATENCY: Change("0", ("5",))}
    assert planned.without({LATENCY}).record == {}
