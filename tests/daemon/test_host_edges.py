"""What the agent asks others to do to the host, and how long that may take."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon.host_edges import HostEdges
from nodeagent.edge import irqbalance, units
from nodeagent.edge.host_settings import HostSettingsFiles, possible_cpus
from nodeagent.edge.irqbalance import IrqbalanceError
from tests.edge.test_irqbalance import Daemon

IRQBALANCE, FIVE, SIX = Setting(SettingKind.IRQBALANCE), *(Setting(SettingKind.BALANCING, name) for name in "56")
UNITS = tuple(Setting(SettingKind.UNIT, f"unit-{number}.slice") for number in range(20))


@pytest.mark.parametrize("cpus", [CpuSet.of(0), None], ids=["set", "cleared"])
def test_a_systemd_that_hangs_costs_one_limit_however_many_units_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: CpuSet | None
) -> None:
    program = tmp_path / "systemctl"
    program.write_text(f"#!/bin/sh\necho >>{tmp_path}/calls\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(units, "CALL_SECONDS", 2.0)
    monkeypatch.setattr(units, "_ENVIRONMENT", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    refused = HostEdges(lambda writes: (None,) * len(writes)).write(dict.fromkeys(UNITS, cpus or possible_cpus()))
    assert refused.keys() == set(UNITS)
    assert all(why.endswith("systemd has not answered for 2 s") for why in refused.values())
    assert len((tmp_path / "calls").read_text().splitlines()) == 8, "those that were asked at once, and no other"


@pytest.fixture
def balancer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """An irqbalance, on a machine with interrupts 5 and 6, that leaves 6 alone."""
    daemon = Daemon(tmp_path / "irqbalance7.sock")
    daemon.answer = b"SLEEP 10 IRQ 6 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000"
    monkeypatch.setattr(HostSettingsFiles, "interrupt_numbers", lambda _: (5, 6))
    for name in ("read", "leave"):
        monkeypatch.setattr(irqbalance, name, partial(getattr(irqbalance, name), directory=tmp_path))
    yield daemon
    daemon.close()


def test_irqbalance_is_asked_once_what_it_leaves_alone(balancer: Daemon) -> None:
    edges, every = HostEdges(lambda writes: (None,) * len(writes)), possible_cpus()
    found = edges.read({SettingKind.IRQBALANCE, SettingKind.BALANCING}).settings
    assert found == {IRQBALANCE: every, FIVE: every, SIX: CpuSet()}
    assert balancer.asked == [b"setup"]
    assert edges.read({SettingKind.IRQBALANCE}).settings == {IRQBALANCE: every}


def test_what_irqbalance_leaves_alone_anyway_stays_so(balancer: Daemon) -> None:
    edges, every = HostEdges(lambda writes: (None,) * len(writes)), possible_cpus()
    assert edges.write({FIVE: CpuSet()}) == {}
    balancer.answer = b"SLEEP 10 IRQ 5 LOAD 0 DIFF 0 CLASS 0 IRQ 6 LOAD 0 DIFF 0 CLASS 0 BANNED 00000000"
    assert edges.write({FIVE: every}) == {}
    assert [asked for asked in balancer.asked if asked != b"setup"] == [
        b"settings ban irqs 5 6",
        b"settings ban irqs 6",
    ]


def test_an_irqbalance_that_says_something_else_is_named_for_all_that_it_has(balancer: Daemon) -> None:
    balancer.answer = b"hello"
    edges = HostEdges(lambda writes: (None,) * len(writes))
    failed = edges.read({SettingKind.IRQBALANCE, SettingKind.BALANCING}).failed
    assert failed.keys() == {SettingKind.IRQBALANCE, SettingKind.BALANCING}
    assert edges.write({FIVE: CpuSet()}).keys() == {FIVE}


def test_an_irqbalance_that_hangs_costs_one_limit(balancer: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_cpus: CpuSet) -> None:
        raise IrqbalanceError("no answer", hint="see it")

    monkeypatch.setattr(irqbalance, "ban", hang)
    edges = HostEdges(lambda writes: (None,) * len(writes))
    assert edges.write({FIVE: CpuSet(), IRQBALANCE: CpuSet()}) == dict.fromkeys((FIVE, IRQBALANCE), "no answer")
    assert balancer.asked == []
