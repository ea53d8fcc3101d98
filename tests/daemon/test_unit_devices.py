"""Units that may use certain devices only are allowed their own, and lose nothing else: over restarts, failures and changes by others."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.config import Config
from nodeagent.core.model.device_access import DeviceFile
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.pod import QosClass
from nodeagent.core.model.promises import NOTHING, with_pod
from nodeagent.core.model.state import ContainerStatus, NodeState, Origin, PodEntry
from nodeagent.core.resources.devices.holdings import DeviceHoldings, taken_devices
from nodeagent.daemon.domains.jobs.domain import JobsDomain
from nodeagent.daemon.domains.systemd import unit_devices
from nodeagent.daemon.domains.systemd.unit_devices import Rules, UnitDevices
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.systemd.units import UnitsError
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from nodeagent.formats.kernel.unit_properties import DeviceRules
from tests.support.daemon_model import Daemon, watched
from tests.support.node_model import Machine, Unit
from tests.support.pods import app, pod, unit
from tests.support.world import SMALL, empty_state, node

DISK, CARD = "0000:01:00.0", "0000:02:00.0"
FILES = {
    DISK: (
        DeviceFile("/dev/nvme0", is_block=False, major=240, minor=0),
        DeviceFile("/dev/nvme0n1", is_block=True, major=259, minor=0),
    ),
    CARD: (),
}
OWN = "/dev/net/tun rwm"
GIVEN = ("/dev/nvme0 rw", "/dev/nvme0n1 rw")


class Systemd:
    def __init__(self) -> None:
        self.units = {
            "free.service": DeviceRules("loaded", "auto", ()),
            "listed.service": DeviceRules("loaded", "auto", (OWN,)),
            "closed.service": DeviceRules("loaded", "closed", ()),
            "strict.service": DeviceRules("loaded", "strict", (OWN, "/dev/nvme0 r")),
        }
        self.told: list[tuple[str, Rules]] = []
        self.asked: list[float] = []
        self.fails = False
        self.kept: set[str] = set()

    def keeps(self, unit: str) -> bool:
        return unit in self.kept

    def show(self, unit: str, until: float) -> DeviceRules:
        self.asked.append(until)
        return self.units.get(unit, DeviceRules("not-found", "auto", ()))

    def set(self, unit: str, rules: Rules, until: float) -> None:
        self.asked.append(until)
        if self.fails:
            raise UnitsError("cannot set it", hint="try")
        self.told.append((unit, rules))
        self.units[unit] = replace(self.units[unit], allowed=rules)


class Desk:
    def __init__(self, directory: Path) -> None:
        self.config = Config(runtime_directory=str(directory))
        self.systemd = Systemd()
        self.files = FILES
        self.begin()

    def begin(self) -> None:
        self.agents = UnitDevices(self.config, self.systemd, lambda address: self.files[address])

    def keep(self, unit: str, *devices: str, rescan: bool = False) -> list[str]:
        return [str(one) for one in self.agents.keep(holding(unit, *devices), rescan=rescan)]

    def allowed(self, unit: str) -> Rules:
        return self.systemd.units[unit].allowed


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def holding(unit: str, *devices: str) -> NodeState:
    of = pod("p", replace(app("main", "1"), unit=unit))
    state = empty_state(node(SMALL))
    state = replace(
        state,
        entries=(PodEntry(of, QosClass.GUARANTEED, Origin("p.yaml"), 0, containers=(ContainerStatus("main"),)),),
    )
    held = (
        NOTHING.having(DeviceHoldings(devices=(("main", tuple(HeldDevice("example.com/x", id_) for id_ in devices)),)))
        if devices
        else NOTHING
    )
    return replace(state, promises=with_pod(state.promises, of.uid, held))


@pytest.mark.parametrize(
    ("unit", "before", "meanwhile"),
    [
        ("free.service", (), ()),
        ("listed.service", (OWN,), (OWN, *GIVEN)),
        ("closed.service", (), GIVEN),
        ("strict.service", (OWN, "/dev/nvme0 r"), (OWN, "/dev/nvme0 r", "/dev/nvme0n1 rw")),
    ],
)
def test_a_unit_is_allowed_what_it_has_as_long_as_it_has_it(
    desk: Desk, unit: str, before: Rules, meanwhile: Rules
) -> None:
    assert desk.keep(unit, DISK, CARD) == []
    assert desk.allowed(unit) == meanwhile
    told = len(desk.systemd.told)
    assert desk.keep(unit, DISK, CARD) == []
    desk.begin()
    assert desk.keep(unit, DISK, CARD, rescan=True) == []
    assert len(desk.systemd.told) == told, "what is so is not said again, whoever has said it"
    assert desk.keep(unit) == []
    assert desk.allowed(unit) == before
    assert not list(Path(desk.config.runtime_directory).rglob("allowed"))


def test_an_agent_that_comes_later_takes_away_what_another_has_added(desk: Desk) -> None:
    desk.keep("listed.service", DISK)
    desk.begin()
    desk.systemd.units["listed.service"] = DeviceRules("loaded", "auto", (*GIVEN, OWN, "/dev/kvm rw"))
    assert desk.keep("other.service") == []
    assert desk.allowed("listed.service") == (OWN, "/dev/kvm rw")


def test_a_unit_whose_pod_is_not_known_now_keeps_what_it_is_allowed(desk: Desk) -> None:
    desk.keep("listed.service", DISK)
    desk.begin()
    nobody = empty_state(node(SMALL))
    for unclear, allowed in ((frozenset({"listed.service"}), (OWN, *GIVEN)), (frozenset(), (OWN,))):
        assert desk.agents.keep(nobody, rescan=True, unclear=unclear) == ()
        assert desk.allowed("listed.service") == allowed


def test_what_a_unit_had_is_taken_from_it_before_a_container_may_be_given_it(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Device(DISK, DeviceKind.NVME, 0x010802, names=("nvme0",))
    gives = (DeviceSelection("example.com/x", (DeviceSelector(kind=DeviceKind.NVME),)),)
    allowed: list[Rules] = []

    def finish(*_: object) -> tuple[Problem, ...]:
        allowed.append(desk.allowed("listed.service"))
        return ()

    monkeypatch.setattr(JobsDomain, "finish", finish)
    machine = Machine(node(SMALL, devices=gives))
    machine.units["listed.service"] = Unit(UnitSettings())
    daemon = Daemon(machine, tmp_path / "state")
    daemon.directory.mkdir()
    monkeypatch.setattr(
        unit_devices, "UnitDevices", lambda config: UnitDevices(config, desk.systemd, lambda address: FILES[address])
    )
    pinned = pod("p", unit("listed.service", "1", devices={"example.com/x": 1}))
    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (pinned,)
        daemon.start()
        daemon.hardware.placed = PlacedDevices.of((disk,), daemon.hardware.topology)
        daemon.rest()
        assert desk.allowed("listed.service") == (OWN, *GIVEN)
        daemon.files.pods = ()
        allowed.clear()
        while taken_devices(daemon.agent.state.promises):
            daemon.turn()
    assert allowed[-1] == (OWN,), "in the turn in which it is free"


def test_what_can_not_be_taken_from_a_unit_is_not_allowed_to_another_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.keep("strict.service", DISK)
    does = desk.systemd.set

    def fails(unit: str, rules: Rules, until: float) -> None:
        if unit == "strict.service":
            raise UnitsError("cannot set it", hint="try")
        does(unit, rules, until)

    monkeypatch.setattr(desk.systemd, "set", fails)
    for rescan in (False, True):
        taken, allowed = desk.keep("listed.service", DISK, rescan=rescan)
        assert taken == "cannot set it (try)"
        assert allowed.startswith(
            "unit listed.service may not use /dev/nvme0n1 yet, because systemd could not withdraw this file from strict.service"
        )
        assert desk.allowed("listed.service") == (OWN, "/dev/nvme0 rw")
    monkeypatch.undo()
    assert desk.keep("listed.service", DISK) == []
    assert desk.allowed("strict.service") == (OWN, "/dev/nvme0 r")
    assert desk.allowed("listed.service") == (OWN, *GIVEN)


def test_it_is_recorded_before_it_is_done_and_forgotten_after_it_is_undone(desk: Desk) -> None:
    desk.systemd.fails = True
    assert desk.keep("closed.service", DISK) == ["cannot set it (try)"]
    (record,) = Path(desk.config.runtime_directory).rglob("allowed")
    assert json.loads(record.read_text()) == list(GIVEN)
    desk.systemd.fails = False
    assert desk.keep("closed.service", DISK) == []
    desk.systemd.fails = True
    assert desk.keep("closed.service") == ["cannot set it (try)"]
    assert json.loads(record.read_text()) == list(GIVEN)
    desk.systemd.fails = False
    assert desk.keep("closed.service") == []
    assert not record.exists()


def test_one_that_was_opened_to_all_is_not_closed_by_what_was_added(desk: Desk) -> None:
    desk.keep("listed.service", DISK)
    desk.systemd.units["listed.service"] = DeviceRules("loaded", "auto", GIVEN)
    desk.keep("listed.service", DISK, rescan=True)
    assert desk.allowed("listed.service") == ()


def test_a_unit_that_is_gone_keeps_no_record(desk: Desk) -> None:
    desk.keep("closed.service", DISK)
    del desk.systemd.units["closed.service"]
    assert desk.keep("other.service") == []
    assert not list(Path(desk.config.runtime_directory).rglob("allowed"))


def test_a_device_that_is_gone_is_told_until_it_is_back(desk: Desk) -> None:
    def gone(_address: str) -> tuple[DeviceFile, ...]:
        raise SysfsError("/sys/bus/pci/devices/0000:01:00.0", "there is no such device", hint="plug it in")

    desk.agents = UnitDevices(desk.config, desk.systemd, gone)
    problem = "cannot use /sys/bus/pci/devices/0000:01:00.0: there is no such device (plug it in)"
    assert desk.keep("closed.service", DISK) == [problem]
    assert desk.keep("closed.service", DISK) == [problem]
    desk.begin()
    assert desk.keep("closed.service", DISK) == []


def test_a_damaged_record_is_none(desk: Desk) -> None:
    directory = Path(desk.config.runtime_directory) / "unit-devices" / "closed.service"
    directory.mkdir(parents=True)
    (directory / "allowed").write_text("{")
    assert desk.keep("closed.service", DISK) == []
    assert desk.allowed("closed.service") == GIVEN


def test_one_device_that_is_gone_keeps_neither_another_nor_what_others_may_have_now(desk: Desk) -> None:
    """The kernel gives the names and numbers of what is unplugged to what is plugged in next, be it another pod's."""
    other = "0000:03:00.0"
    desk.files = {**FILES, other: (DeviceFile("/dev/uio3", is_block=False, major=244, minor=3),)}
    there = dict(desk.files)

    def files(address: str) -> tuple[DeviceFile, ...]:
        if address not in there:
            raise SysfsError(f"/sys/bus/pci/devices/{address}", "there is no such device", hint="plug it in")
        return there[address]

    desk.agents = UnitDevices(desk.config, desk.systemd, files)
    assert desk.keep("listed.service", DISK, other) == []
    del there[DISK]
    (problem,) = desk.keep("listed.service", DISK, other, rescan=True)
    assert "there is no such device" in problem
    assert desk.allowed("listed.service") == (OWN, "/dev/uio3 rw")
    there[DISK] = FILES[DISK]
    assert desk.keep("listed.service", DISK, other) == []
    assert desk.allowed("listed.service") == (OWN, *GIVEN, "/dev/uio3 rw")
    del there[other]
    desk.keep("listed.service", other)
    assert desk.allowed("listed.service") == (OWN,), "what it had goes, though it can't have the next"


def test_a_file_that_has_other_numbers_is_allowed_anew(desk: Desk) -> None:
    """systemd asks for the numbers when it is told the name, and the kernel may give the old ones to somebody else."""
    desk.keep("closed.service", DISK)
    desk.keep("closed.service", DISK, rescan=True)
    assert len(desk.systemd.told) == 1
    controller, disk = FILES[DISK]
    desk.files = {DISK: (controller, replace(disk, minor=7))}
    desk.keep("closed.service", DISK, rescan=True)
    assert desk.systemd.told == [("closed.service", GIVEN)] * 2


@pytest.mark.parametrize("load_state", ["masked", "bad-setting", "error", "not-found"])
def test_a_unit_that_can_not_be_loaded_for_a_while_loses_what_was_added_afterwards(desk: Desk, load_state: str) -> None:
    desk.keep("listed.service", DISK)
    loaded = desk.systemd.units["listed.service"]
    desk.systemd.kept = {"listed.service"}
    desk.systemd.units["listed.service"] = DeviceRules(load_state, "auto", ())
    assert desk.keep("listed.service", DISK, rescan=True) == []
    assert desk.keep("listed.service", rescan=True) == []
    desk.begin()
    desk.systemd.units["listed.service"] = loaded
    desk.keep("other.service")
    assert desk.allowed("listed.service") == (OWN,)
    assert not list(Path(desk.config.runtime_directory).rglob("allowed"))


def test_a_unit_that_is_being_given_back_has_lost_its_devices_before_they_are_free(desk: Desk) -> None:
    desk.keep("listed.service", DISK)
    state = holding("listed.service", DISK)
    (entry,) = state.entries
    ending = replace(state, entries=(replace(entry, deleting_since_ms=1),))
    assert desk.agents.keep(ending, rescan=False) == ()
    assert desk.allowed("listed.service") == (OWN,)


def test_all_units_together_wait_as_long_as_one_for_a_systemd_that_does_not_answer(desk: Desk) -> None:
    """The agent's own watchdog has less patience than five seconds for each."""
    desk.keep("listed.service", DISK)
    desk.systemd.asked.clear()
    assert desk.keep("closed.service", CARD) == []
    assert len(desk.systemd.asked) > 2
    assert len({*desk.systemd.asked}) == 1


def test_files_that_systemd_can_not_take_from_a_unit_are_told_until_it_can(desk: Desk) -> None:
    desk.keep("closed.service", DISK)
    desk.systemd.fails = True
    desk.keep("closed.service", DISK, rescan=True)
    assert desk.agents.overdue == {}
    desk.keep("listed.service")
    assert desk.agents.overdue == dict.fromkeys(("/dev/nvme0", "/dev/nvme0n1"), "closed.service")
    desk.systemd.fails = False
    desk.keep("listed.service")
    assert desk.agents.overdue == {}
