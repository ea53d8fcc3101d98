"""What units had before they were pinned is known beside the state, so that they have it again when that is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.config import Config
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.domains.systemd.unit_records import UnitRecords
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.formats.kernel.unit_properties import format_unit_record, parse_unit_record
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine, Unit
from tests.support.pods import app, manifests, pod, unit
from tests.support.world import SMALL, node

BEFORE = UnitSettings(CpuSet.parse("0-3"), NumaSet.of(0))
DB = pod("db", unit("db.service", "2"))


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A pinned unit."""
    machine = Machine(node(SMALL))
    machine.units["db.service"] = Unit(BEFORE)
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (DB,)
        daemon.start()
        daemon.rest()
        assert settings(daemon) != BEFORE
        yield daemon


def settings(daemon: Daemon) -> UnitSettings:
    return daemon.machine.units["db.service"].settings


def recorded(daemon: Daemon) -> dict[str, UnitSettings]:
    return dict(UnitRecords(daemon.agent.node.config).look())


def restart_without_state(daemon: Daemon, *pods: Pod) -> None:
    for name in (STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT):
        (daemon.directory / name).unlink()
    daemon.files.pods = pods
    daemon.start()


def test_it_is_recorded_while_a_pod_stands_for_the_unit(daemon: Daemon) -> None:
    assert recorded(daemon) == {"db.service": BEFORE}
    daemon.files.pods = ()
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (BEFORE, {})


@pytest.mark.parametrize("is_active", [True, False])
def test_with_its_manifest_the_unit_stays_and_goes_back_to_it_in_the_end(daemon: Daemon, *, is_active: bool) -> None:
    own = settings(daemon)
    daemon.machine.units["db.service"].is_active = is_active
    restart_without_state(daemon, DB)
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (own, {"db.service": BEFORE})
    daemon.files.pods = ()
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (BEFORE, {})


def test_without_its_manifest_it_goes_back_at_once_and_may_be_pinned_again(daemon: Daemon) -> None:
    restart_without_state(daemon, pod("a", app(cpu="5")))
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (BEFORE, {})
    assert daemon.agent.view.problems == ()
    daemon.files.pods = (DB,)
    daemon.rest()
    assert recorded(daemon) == {"db.service": BEFORE}


def test_while_it_is_not_known_whether_it_has_a_manifest_it_stays(daemon: Daemon) -> None:
    own = settings(daemon)
    restart_without_state(daemon)
    daemon.files.look_again = PodSource(is_blind=True)
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (own, {"db.service": BEFORE})
    daemon.files.look_again = None
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (BEFORE, {})


def test_others_keep_off_its_cpus_while_it_is_not_known_whose_it_is(daemon: Daemon) -> None:
    own = settings(daemon)
    restart_without_state(daemon)
    a, b = pod("a", app(cpu="5")), pod("b", app(cpu="2"))
    daemon.files.look_again = PodSource(manifests(a, b), unreadable=frozenset({"db.yaml"}))
    daemon.rest()
    assert settings(daemon) == own
    promises = daemon.agent.state.promises
    assert own_set_of(promises, a.uid, "app") == CpuSet.parse("1-7") - own.allowed_cpus
    assert own_set_of(promises, b.uid, "app") == own.allowed_cpus, "there are no others"
    assert daemon.machine.running_containers() == ("poduid-a/app",), "and it waits for these"
    (problem,) = daemon.agent.view.problems
    assert problem.startswith(f"db.service stays on CPUs {own.allowed_cpus}: a pod has pinned it, ")
    daemon.files.look_again = PodSource(manifests(a, b))
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (BEFORE, {})
    assert daemon.machine.running_containers() == ("poduid-a/app", "poduid-b/app")


@pytest.mark.parametrize("before", [BEFORE, UnitSettings()])
def test_what_has_gone_back_keeps_nobody_off_any_cpus_while_another_manifest_can_not_be_read(
    daemon: Daemon, before: UnitSettings
) -> None:
    daemon.machine.units["web.service"] = Unit(before)
    daemon.files.pods = (pod("web", unit("web.service", "2")),)
    daemon.rest()
    daemon.files.look_again = PodSource(unreadable=frozenset({"other.yaml"}))
    daemon.rest()
    assert recorded(daemon) == {}
    assert daemon.machine.units["web.service"].settings == before
    a = pod("a", app(cpu="7"))
    daemon.files.look_again = PodSource(manifests(a), unreadable=frozenset({"other.yaml"}))
    daemon.rest()
    assert daemon.machine.running_containers() == ("poduid-a/app",)
    assert daemon.agent.view.problems == ()


def test_what_was_never_told_anything_keeps_nobody_off_any_cpus(daemon: Daemon) -> None:
    """It was recorded, and then the agent has lost its state."""
    daemon.machine.units["db.service"].settings = UnitSettings()
    UnitRecords(daemon.agent.node.config).keep({"db.service": UnitSettings()})
    restart_without_state(daemon)
    daemon.files.look_again = PodSource(manifests(pod("a", app(cpu="7"))), unreadable=frozenset({"db.yaml"}))
    daemon.rest()
    assert daemon.machine.running_containers() == ("poduid-a/app",)
    assert daemon.agent.view.problems == ()


@pytest.mark.parametrize("is_active", [True, False])
def test_it_keeps_its_cpus_when_its_manifest_can_be_read_again(daemon: Daemon, *, is_active: bool) -> None:
    daemon.files.pods = (pod("first", app(cpu="1")), DB)
    daemon.rest()
    daemon.files.pods = (DB,)
    daemon.rest()
    own = settings(daemon)
    daemon.machine.units["db.service"].is_active = is_active
    restart_without_state(daemon)
    a = pod("a", app(cpu="1"))
    daemon.files.look_again = PodSource(manifests(a), unreadable=frozenset({"db.yaml"}))
    daemon.rest()
    daemon.files.look_again = PodSource(manifests(a, pod("b", app(cpu="4")), DB))
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (own, {"db.service": BEFORE})
    assert own_set_of(daemon.agent.state.promises, DB.uid, "db") == own.allowed_cpus
    assert [entry.pod.name for entry in daemon.agent.state.entries if entry.refusal is None] == ["a", "db", "b"]
    daemon.files.look_again = PodSource()
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (BEFORE, {})


def test_it_keeps_its_device_when_its_manifest_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nic = "example.com/nic"
    cards = tuple(Device(f"0000:0{number}:00.0", DeviceKind.NETWORK, 0, names=(f"eth{number}",)) for number in range(2))
    machine = Machine(node(SMALL, devices=(DeviceSelection(nic, (DeviceSelector(kind=DeviceKind.NETWORK),)),)))
    machine.units["db.service"] = Unit(BEFORE)
    daemon = Daemon(machine, tmp_path, steps=Steps())
    first, db = pod("first", app(devices={nic: 1})), pod("db", unit("db.service", "2", devices={nic: 1}))
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        daemon.hardware.placed = PlacedDevices.of(cards, daemon.hardware.topology)
        for pods in ((first,), (first, db), (db,)):
            daemon.files.pods = pods
            daemon.rest()
        before = daemon.agent.state.promises.of_pod(db.uid).of(DeviceHoldings).devices
        assert [one.id for _, own in before for one in own] == [cards[1].address]
        restart_without_state(daemon)
        daemon.files.look_again = PodSource(unreadable=frozenset({"db.yaml"}))
        daemon.rest()
        assert [one.uid for one in daemon.agent.state.promises.unrecovered] == [db.uid]
        daemon.files.look_again = PodSource(manifests(db))
        daemon.hardware.placed = PlacedDevices.of(cards, daemon.hardware.topology)
        daemon.rest()
        ((_, (own,)),) = daemon.agent.state.promises.of_pod(db.uid).of(DeviceHoldings).devices
        assert own.id == cards[1].address
        assert daemon.agent.state.promises.unrecovered == ()


def test_it_goes_back_when_its_pod_is_refused(daemon: Daemon) -> None:
    """Its manifest has become another one meanwhile, with a unit that was never pinned."""
    daemon.machine.units["web.service"] = Unit(UnitSettings())
    restart_without_state(daemon)
    daemon.files.pods = (pod("a", app(cpu="6")), pod("db", unit("db.service", "1"), unit("web.service", "1")))
    daemon.rest()
    assert [entry.pod.name for entry in daemon.agent.state.entries if entry.refusal] == ["db"]
    assert (settings(daemon), recorded(daemon)) == (BEFORE, {})


def test_while_systemd_does_not_answer_it_is_not_forgotten(daemon: Daemon) -> None:
    restart_without_state(daemon)
    daemon.machine.systemd_answers = False
    daemon.turn()
    assert recorded(daemon) == {"db.service": BEFORE}
    daemon.machine.systemd_answers = True
    daemon.rest()
    assert (settings(daemon), recorded(daemon)) == (BEFORE, {})


def test_a_unit_that_systemd_no_longer_knows_has_nothing_to_go_back_to(daemon: Daemon) -> None:
    daemon.machine.units.clear()
    restart_without_state(daemon)
    daemon.rest()
    assert (recorded(daemon), daemon.agent.view.problems) == ({}, ())


def test_what_cannot_be_recorded_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    config = Config(runtime_directory=str(tmp_path / "run"))
    (problem,) = UnitRecords(config).keep({"db.service": BEFORE})
    assert str(tmp_path / "run") in problem


def test_what_cannot_be_read_now_is_told_and_not_written_over(tmp_path: Path) -> None:
    config = Config(runtime_directory=str(tmp_path))
    UnitRecords(config).keep({"db.service": BEFORE})
    units, away = tmp_path / "units", tmp_path / "away"
    units.rename(away)
    units.touch()
    records = UnitRecords(config)
    for _ in range(2):
        (problem,) = records.keep({"web.service": BEFORE})
        assert str(units) in problem
    units.unlink()
    away.rename(units)
    assert records.keep({"db.service": BEFORE, "web.service": UnitSettings()}) == ()
    assert UnitRecords(config).look() == {"db.service": BEFORE, "web.service": UnitSettings()}


@pytest.mark.parametrize("content", [b"", b"{}", b'{"cpus": "x", "mems": ""}', b"\xff"])
def test_what_is_no_record_is_none(tmp_path: Path, content: bytes) -> None:
    assert parse_unit_record(content) is None
    config = Config(runtime_directory=str(tmp_path))
    records = UnitRecords(config)
    records.keep({"db.service": BEFORE})
    (tmp_path / "units/db.service/before").write_bytes(content)
    assert UnitRecords(config).look() == {}


@pytest.mark.parametrize("before", [UnitSettings(), BEFORE])
def test_a_record_reads_back(before: UnitSettings) -> None:
    assert parse_unit_record(format_unit_record(before)) == before
