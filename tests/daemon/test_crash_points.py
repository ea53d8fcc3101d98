"""The daemon dies at every step it takes (D19): before each call into an edge, and in the middle of each write.

The real turns, the real state files, the model of launcher and kernel. After each death a new process goes on, and then: no CPU ever had
two owners, nothing admitted is lost, no process moved, and the end is the one that would have been without the death.
"""

import copy
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.host.settings import SettingKind
from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.quiet import QuietRequest, QuietSettings
from nodeagent.core.model.state import NodeState, Phase
from nodeagent.core.resources.cpu.holdings import CpuHoldings, exclusive_cpus
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.formats.checkpoint.node_state import NodeStateError
from nodeagent.formats.wire.launcher_protocol import StartRequest
from tests.core.turn.test_turns import WatchedAgent, decoded
from tests.daemon.test_recovery import MEMORY, two_nodes
from tests.support.claims import NUMA, claiming, request, template
from tests.support.daemon_model import Daemon, Files, Steps, is_as_saved, watched
from tests.support.figures import Recorder, keep, report
from tests.support.node_model import CrashError, Machine, Process, Unit
from tests.support.pods import app, burstable, cgroup_only, init, job, pod, sidecar, unit
from tests.support.shares import share
from tests.support.world import SMALL, Node, node

OF = node(two_nodes(), **MEMORY)
ISOLATED = {"interrupt_isolation": "affinity", "host_isolation": "partition"}
QUIET = node(two_nodes(), config=ISOLATED, **MEMORY)
ANY = node(two_nodes(), resize_below_admitted_cpus=True, **MEMORY)
ANY_QUIET = node(two_nodes(), resize_below_admitted_cpus=True, config=ISOLATED, **MEMORY)
A, B = pod("a", app("app", "2")), pod("b", app("app", resources=burstable()))
C = pod("c", init("first", "1"), sidecar("side", "1"), app("app", "2"), cgroup_only("slot", "1"))
JOB = job("job", app("app", "1"))
MORE_DB = pod("db", unit("db.service", "3"))
DB, WEB = pod("db", unit("db.service", "2")), pod("web", unit("web.service", resources=burstable()))
UNITS = ("db.service", "web.service")
MORE = pod("a", app("app", "4", memory="256Mi"))
X_HAS_MORE, Y_HAS_MORE = (
    pod("two", app("x", x, memory=f"{x}Mi"), app("y", y, memory=f"{y}Mi")) for x, y in (("3", "1"), ("1", "3"))
)
CLAIMING, CLAIMS_MORE, ALSO_CLAIMING = (
    replace(claiming("claims", count, template(request("cpus", count=int(count)), match=NUMA)), name=name, uid=uid)
    for count, name, uid in (("2", "claims", "uid-claims"), ("3", "claims", "uid-more"), ("4", "also", "uid-also"))
)
CLAIMS_CARD, ALSO_CLAIMS_CARD = (
    claiming(name, "2", template(request("cpus", count=2), request("card", "nodeagent.io"), match=NUMA))
    for name in ("claims-card", "claims-another")
)
NIC = "example.com/nic"
CARDS = PlacedDevices.of(
    tuple(
        Device(f"0000:0{number}:00.0", DeviceKind.NETWORK, 0, names=(f"eth{number}",), numa_node=where)
        for number, where in enumerate((1, 0, 1, 0))
    ),
    two_nodes(),
)
GIVES = (DeviceSelection(NIC, (DeviceSelector(kind=DeviceKind.NETWORK),)),)
GIVING = node(two_nodes(), topology_manager_policy="restricted", devices=GIVES, **MEMORY)
HAS_TWO = pod("cards", app("app", "1", devices={NIC: 2}))
HAS_ONE = pod("card", app("app", "2", devices={NIC: 1}))
WANTS_TWO = pod("other", app("app", "1", devices={NIC: 2}))
WANTS_ONE = pod("one", app("app", "1", devices={NIC: 1}))
HANDS_ON = pod("after", init("first", "1", devices={NIC: 2}), app("app", "1", devices={NIC: 2}))
STILL = pod("still", app("app", "2"), quiet=QuietRequest("quiet"))
STEADY = QuietSettings(idle_latency_us=2, min_frequency_mhz=2400, max_frequency_mhz=2400, boost=False)
ALSO_STILL = pod("calm", app("app", "2"), quiet=QuietRequest("", STEADY))
ONE_BOOST = node(two_nodes(), config={"machine_wide_boost": True}, **MEMORY)
LARGE = pod("large", app("app", "7"))
RESIZED = frozenset({"poduid-a/app", "poduid-two/x", "poduid-two/y"})
ALL_FILES = (STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT)


@dataclass(frozen=True)
class Scenario:
    """What there was, what happens, and what is to come of it."""

    before: tuple = (A, B)
    after: tuple = (A, B)
    of: Node = OF
    then: Node | None = None
    """Another node, on which a new process starts."""
    restarts: bool = False
    """A new process starts; else the one that runs goes on."""
    meddle: Callable[[Machine, Path], None] = lambda _machine, _directory: None
    """What else happens, from outside."""
    deltas: frozenset[str] = frozenset()
    """Containers that are to move, or to have other CPUs."""
    shared_before: bool = False
    """Who is to be alone runs among others when it begins."""
    units: tuple[str, ...] = ()
    """Units that systemd runs everywhere when it begins."""
    unusable: tuple[str, ...] = ()
    """Files that are to be set aside as they are when it begins."""


def let_it_exit(path: str, code: int = 0) -> Callable[[Machine, Path], None]:
    def exits(machine: Machine, _directory: Path) -> None:
        [run_id] = [run_id for run_id in machine.running() if machine.path_of(run_id) == path]
        machine.exit(run_id, code)

    return exits


def damage(_machine: Machine, directory: Path) -> None:
    file = directory / STATE_FILE
    file.write_bytes(file.read_bytes()[:-20])


def lose(machine: Machine, directory: Path) -> None:
    damage(machine, directory)
    for name in (CPU_CHECKPOINT, MEMORY_CHECKPOINT):
        (directory / name).write_bytes(b"{")


def leave_stubborn(machine: Machine, _directory: Path) -> None:
    """Something in pod a's cgroup ignores SIGTERM."""
    machine.groups["poduid-a/app"].processes.append(Process(None, is_stubborn=True))


SCENARIOS = {
    "first start": Scenario(before=(), after=(A, B), restarts=True),
    "admission": Scenario(after=(A, B, C)),
    "admission of a pod that is refused": Scenario(after=(A, B, LARGE)),
    "removal": Scenario(after=(B,)),
    "removal of all": Scenario(before=(A, B, C), after=()),
    "removal with leftovers": Scenario(after=(B,), meddle=leave_stubborn),
    "another under the same name": Scenario(after=(pod("a", app("app", "3"), uid="uid-other"), B)),
    "a resize up": Scenario(after=(MORE, B), deltas=RESIZED),
    "a resize down": Scenario(before=(MORE, B), after=(A, B), of=ANY, deltas=RESIZED),
    "one container has less and another has more": Scenario(
        before=(X_HAS_MORE, A, B), after=(Y_HAS_MORE, A, B), of=ANY, deltas=RESIZED
    ),
    "one pod has less and another comes": Scenario(before=(MORE, B), after=(A, B, C), of=ANY, deltas=RESIZED),
    "a resize up, at a restart": Scenario(after=(MORE, B), deltas=RESIZED, restarts=True),
    "a resize down, at a restart": Scenario(before=(MORE, B), after=(A, B), of=ANY, deltas=RESIZED, restarts=True),
    "a resize up, and interrupts leave": Scenario(after=(MORE, B), of=QUIET, deltas=RESIZED),
    "a resize down, and interrupts come back": Scenario(
        before=(MORE, B), after=(A, B), of=ANY_QUIET, deltas=RESIZED
    ),
    "claims come": Scenario(before=(B,), after=(CLAIMING, B)),
    "claims go, and others come": Scenario(before=(CLAIMING, B), after=(ALSO_CLAIMING, B)),
    "a claim is another one": Scenario(before=(CLAIMING, B), after=(CLAIMS_MORE, B)),
    "claims come and go at a restart": Scenario(before=(CLAIMING, B), after=(ALSO_CLAIMING, A, B), restarts=True),
    "recovery of claims": Scenario(
        before=(CLAIMING, B), after=(CLAIMING, B), meddle=lose, restarts=True, unusable=ALL_FILES
    ),
    "devices come": Scenario(before=(HAS_ONE, B), after=(HAS_ONE, HAS_TWO, B), of=GIVING),
    "devices go": Scenario(before=(HAS_TWO, HAS_ONE, B), after=(HAS_ONE, B), of=GIVING),
    "devices go, and others come": Scenario(before=(HAS_TWO, B), after=(WANTS_TWO, B), of=GIVING),
    "devices go, and others come, at a restart": Scenario(
        before=(HAS_TWO, B), after=(WANTS_TWO, B), of=GIVING, restarts=True
    ),
    "an init container leaves its devices to the next": Scenario(
        before=(HANDS_ON, B), after=(HANDS_ON, B), of=GIVING, meddle=let_it_exit("poduid-after/first")
    ),
    "recovery of devices": Scenario(
        before=(HAS_TWO, HAS_ONE), after=(HAS_TWO, HAS_ONE), of=GIVING, meddle=lose, restarts=True, unusable=ALL_FILES
    ),
    "recovery of devices, one goes and one comes": Scenario(
        before=(HAS_TWO, HAS_ONE), after=(HAS_ONE, WANTS_ONE), of=GIVING, meddle=lose, restarts=True, unusable=ALL_FILES
    ),
    "a card is claimed, and another one given back": Scenario(
        before=(CLAIMS_CARD, B), after=(ALSO_CLAIMS_CARD, B), restarts=True
    ),
    "recovery of a claimed card": Scenario(
        before=(CLAIMS_CARD, B),
        after=(CLAIMS_CARD, ALSO_CLAIMS_CARD, B),
        meddle=lose,
        restarts=True,
        unusable=ALL_FILES,
    ),
    "a change that is refused": Scenario(after=(pod("a", app("app", "99")), B)),
    "a change that is refused, at a restart": Scenario(after=(pod("a", app("app", "99")), B), restarts=True),
    "one goes and one comes": Scenario(before=(A, B), after=(B, pod("d", app("app", "5")))),
    "an init container ends": Scenario(before=(A, B, C), after=(A, B, C), meddle=let_it_exit("poduid-c/first")),
    "a container ends and starts again": Scenario(meddle=let_it_exit("poduid-a/app", 1)),
    "a job ends": Scenario(before=(A, B, JOB), after=(A, B, JOB), meddle=let_it_exit("poduid-job/app")),
    "restart": Scenario(before=(A, B, C), after=(A, B, C), restarts=True),
    "restart with a new pod": Scenario(after=(A, B, C), restarts=True),
    "admission, and interrupts leave": Scenario(after=(A, B, C), of=QUIET),
    "removal of all, and interrupts come back": Scenario(before=(A, B, C), after=(), of=QUIET),
    "one goes and one comes, and interrupts move": Scenario(
        before=(A, B), after=(B, pod("d", app("app", "5"))), of=QUIET, restarts=True
    ),
    "a quiet pod comes": Scenario(after=(A, B, STILL), of=QUIET),
    "a quiet pod goes": Scenario(before=(A, B, STILL), after=(A, B), restarts=True),
    "a quiet pod goes and another comes": Scenario(before=(A, STILL), after=(A, ALSO_STILL)),
    "a pod of one frequency goes and another comes": Scenario(before=(A, ALSO_STILL), after=(A, STILL), restarts=True),
    "recovery of a quiet pod": Scenario(
        before=(A, STILL), after=(A, STILL), meddle=lose, restarts=True, unusable=ALL_FILES
    ),
    "a quiet pod ends the boost of all": Scenario(before=(A,), after=(A, ALSO_STILL), of=ONE_BOOST),
    "a quiet pod gives the boost of all back": Scenario(before=(A, ALSO_STILL), after=(A,), of=ONE_BOOST, restarts=True),
    "a unit of its own comes": Scenario(before=(B,), after=(B, DB), units=UNITS),
    "a unit that shares makes room, and comes back": Scenario(before=(A, WEB), after=(WEB, DB, B), units=UNITS),
    "units are given back, and a pod has their CPUs": Scenario(
        before=(DB, WEB), after=(B, pod("d", app("app", "5"))), units=UNITS
    ),
    "a unit moves": Scenario(
        before=(DB, WEB), after=(pod("db", unit("db.service", "3"), uid="uid-more"), WEB), units=UNITS
    ),
    "a unit has more": Scenario(
        before=(DB, WEB, B), after=(MORE_DB, WEB, B), units=UNITS, deltas=RESIZED
    ),
    "a unit has less, at a restart": Scenario(
        before=(MORE_DB, WEB, B), after=(DB, WEB, B), units=UNITS, deltas=RESIZED, restarts=True
    ),
    "units come and go at a restart": Scenario(before=(DB, B), after=(WEB, B, A), units=UNITS, restarts=True),
    "units by what they have alone": Scenario(
        before=(A, DB, WEB), after=(A, DB, WEB), units=UNITS, restarts=True, meddle=lose, unusable=ALL_FILES
    ),
    "recovery of a damaged state": Scenario(
        before=(A, B, C), after=(A, B, C), restarts=True, meddle=damage, unusable=(STATE_FILE,)
    ),
    "recovery by what runs alone": Scenario(
        before=(A, B, C), after=(A, B, C), restarts=True, meddle=lose, unusable=ALL_FILES
    ),
    "recovery, one goes and one comes": Scenario(
        before=(A, B), after=(B, C), restarts=True, meddle=lose, unusable=ALL_FILES
    ),
    "recovery from another reservation": Scenario(
        before=(A, B),
        restarts=True,
        then=node(two_nodes(), reserved="0-1", **MEMORY),
        deltas=frozenset({"poduid-a/app"}),
        unusable=(STATE_FILE,),
    ),
    "recovery from another policy": Scenario(
        before=(A, B),
        of=node(SMALL, cpu_manager_policy="none", reserved_system_cpus=CpuSet()),
        restarts=True,
        then=node(SMALL),
        deltas=frozenset({"poduid-a/app"}),
        shared_before=True,
        unusable=(STATE_FILE,),
    ),
}  # fmt: skip


class Life:
    """One machine on which one scenario is lived through."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine, self.directory = machine, directory
        self.judge = WatchedAgent(machine)
        self.pinned: dict[str, CpuSet] = {}
        """Effective CPUs of those that must not move."""
        self.excused: dict[tuple[str, str], CpuSet] = {}
        self.are_alone = True
        self.unusable: dict[str, bytes] = {}
        """What is to be set aside, by file."""
        self.requests: list[StartRequest] = []
        """What the launcher was asked to start, by any process."""

    def daemon(self, pods: tuple, steps: Steps) -> Daemon:
        return Daemon(
            self.machine,
            self.directory,
            Files(pods),
            steps,
            judge=lambda _: self.check(),
            requests=self.requests,
            placed=CARDS,
        )

    def saved(self) -> NodeState | None:
        """What a new process would find."""
        try:
            content = (self.directory / STATE_FILE).read_bytes()
            if content != self.judge.saved:
                decoded(content)
                self.judge.saved = content
            return self.judge.promised()
        except (FileNotFoundError, NodeStateError):
            return None

    def overlaps(self) -> dict[tuple[str, str], CpuSet]:
        """Processes that may run on CPUs that another uses as its own."""
        if self.saved() is None:
            return {}
        return {(there, owner): cpus for (there, owner, how), cpus in self.judge.overlaps().items() if how == "used"}

    def meddle(self, scenario: "Scenario") -> None:
        """Let happen what happens from outside."""
        scenario.meddle(self.machine, self.directory)
        self.unusable = {name: (self.directory / name).read_bytes() for name in scenario.unusable}

    def begin(self, scenario: "Scenario") -> None:
        self.excused, self.are_alone = self.overlaps(), not scenario.shared_before
        state = self.saved()
        own = [
            entry.container_path(name)
            for entry in (state.entries if state else ())
            for name, _ in (state.promises.of_pod(entry.pod.uid).of(CpuHoldings).cpus if state else ())
        ]
        self.pinned = {
            path: self.machine.effective(path)
            for path in own
            if path not in scenario.deltas and path in self.machine.groups and self.machine.is_populated(path)
        }

    def check(self) -> None:
        for pair, cpus in self.overlaps().items() if self.are_alone else ():
            worse = cpus - self.excused.get(pair, CpuSet())
            assert not worse, f"{pair[0]} may run on {worse} of {pair[1]}"
        for path, cpus in self.pinned.items():
            if path in self.machine.groups and self.machine.is_populated(path):
                assert self.machine.effective(path) == cpus, f"{path} moved"
        running = self.machine.running()
        told = [dict(each.env).get("NODEAGENT_DEVICES") for each in self.requests if each.id in running]
        theirs = Counter(address for devices in told if devices for address in devices.split(","))
        assert not [address for address, users in theirs.items() if users > 1], "two run with one device"

    def end(self, daemon: Daemon) -> object:
        """Everything that there is when all is quiet."""
        machine, state, saved = self.machine, daemon.agent.state, self.saved()
        assert saved is not None
        assert is_as_saved(state, saved)
        assert self.overlaps() == {}
        asides = {path.name: path.read_bytes() for path in self.directory.glob("*.aside-*")}
        assert asides == {f"{name}.aside-1": content for name, content in self.unusable.items()}
        groups = {
            path: (observed, sorted(p.run_id or "" for p in machine.groups[path].processes))
            for path, observed in machine.observed().items()
        }
        if daemon.agent.node.config.interrupt_isolation != "none":
            assert not any(
                cpus & exclusive_cpus(state.promises)
                for setting, cpus in machine.shown_settings().items()
                if setting.kind not in {SettingKind.UNIT, SettingKind.BALANCING}
            )
        files = {
            str(path.relative_to(self.directory)): path.read_bytes() if path.is_file() else None
            for path in self.directory.rglob("*")
            if path.name not in {STATE_FILE, ".lock"}
        }
        units = {name: one.settings for name, one in machine.units.items()}
        pinned = {name for entry in state.entries for name in entry.pod.units if entry.is_active}
        assert {name for name, settings in units.items() if settings != UnitSettings()} == pinned, (
            "others are as before"
        )
        return (
            replace(state, generation=0),
            groups,
            sorted(machine.runs),
            files,
            machine.settings,
            machine.values,
            units,
        )


def clone(base: Life, directory: Path) -> Life:
    machine = copy.copy(base.machine)
    for name in ("groups", "units", "runs", "starts", "signals", "writes", "settings", "values"):
        setattr(machine, name, copy.deepcopy(getattr(base.machine, name)))
    shutil.copytree(base.directory, directory)
    life = Life(machine, directory)
    life.requests = list(base.requests)
    return life


def prepared(scenario: Scenario, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    directory.mkdir()
    life = Life(Machine(scenario.of), directory)
    life.machine.units = {name: Unit() for name in scenario.units}
    if scenario.before:
        steps = Steps()
        with watched(monkeypatch, life.machine, steps):
            daemon = life.daemon(scenario.before, steps)
            daemon.start()
            daemon.rest()
    return life


def lived(scenario: Scenario, life: Life, steps: Steps, monkeypatch: pytest.MonkeyPatch) -> tuple[Daemon, bool]:
    """Live through it; with a death in between, and a new process after that. Says whether there was a death."""
    with watched(monkeypatch, life.machine, steps):
        daemon = life.daemon(scenario.before, steps)
        dies_at, steps.dies_at = steps.dies_at, None
        if not scenario.restarts:
            daemon.start()
            daemon.rest()
        life.begin(scenario)
        steps.done.clear()
        steps.dies_at = dies_at
        life.meddle(scenario)
        life.machine.node = life.judge.machine.node = scenario.then or scenario.of
        daemon.files.pods = scenario.after
        try:
            if scenario.restarts:
                daemon.start()
            settle(daemon)
        except CrashError:
            pass
        else:
            return daemon, False
    promised = life.saved()
    running = life.machine.running()
    fresh = Steps()
    with watched(monkeypatch, life.machine, fresh):
        daemon = life.daemon(scenario.after, fresh)
        daemon.start()
        if promised is not None:
            wanted = {p.uid for p in scenario.after}
            kept = [e for e in promised.entries if e.pod.uid in wanted and e.pod in scenario.after and e.is_active]
            found = {e.pod.uid: e for e in daemon.agent.state.entries}
            for entry in kept:
                assert entry.pod.uid in found, f"{entry.pod.name} was admitted, and is lost"
                if scenario.then is None:
                    uid = entry.pod.uid
                    held, before = (state.promises.of_pod(uid) for state in (daemon.agent.state, promised))
                    assert (held.of(CpuHoldings).cpus, held.of(DeviceHoldings).devices) == (
                        before.of(CpuHoldings).cpus,
                        before.of(DeviceHoldings).devices,
                    )
        settle(daemon)
    ended = set(running) - set(life.machine.running())
    gone = {p.uid for p in scenario.before} - {p.uid for p in scenario.after}
    assert all(run_id.split("/")[0] in gone for run_id in ended), f"{ended} ran and were ended"
    return daemon, True


def settle(daemon: Daemon) -> None:
    """Let time pass where only time helps: a grace period, and what irqbalance shows later."""
    for _ in range(5):
        daemon.rest()
        waits = [e for e in daemon.agent.state.entries if e.phase is Phase.TERMINATING]
        if not waits:
            daemon.turn(WakeUpReason.TIMER)
            return
        daemon.machine.now_ms = max(s.stop_by_ms or 0 for e in waits for s in e.containers)
        daemon.turn(WakeUpReason.TIMER)


def kinds(steps: list[str]) -> str:
    names = {
        "cgroup": "cgroup writes",
        "start": "launcher",
        "signal": "launcher",
        "ack": "launcher",
        "kill": "cgroup writes",
        "terminate": "launcher",
        "setting": "settings of the host",
        "systemd": "settings of units",
    }
    counts = Counter(names.get(step.split()[0], "file calls") for step in steps)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


@pytest.mark.parametrize("name", SCENARIOS)
def test_dying_at_any_step_changes_nothing_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Recorder, name: str
) -> None:
    scenario = SCENARIOS[name]
    base = prepared(scenario, tmp_path / "base", monkeypatch)
    life = clone(base, tmp_path / "undisturbed")
    steps = Steps()
    daemon, died = lived(scenario, life, steps, monkeypatch)
    assert not died
    expected, plan = life.end(daemon), list(steps.done)
    halves = [number for number, step in enumerate(plan) if step.startswith("write ")]
    deaths = share([(number, False) for number in range(len(plan))] + [(number, True) for number in halves])
    for number, halfway in deaths:
        life = clone(base, tmp_path / f"{number}-{halfway}")
        daemon, died = lived(scenario, life, Steps(dies_at=number, halfway=halfway), monkeypatch)
        assert died, f"step {number} of {len(plan)} was not reached"
        assert life.end(daemon) == expected, f"died {'in' if halfway else 'before'} {plan[number]}"
        shutil.rmtree(life.directory)
    died_at, half_writes = [plan[number] for number, _ in deaths], sum(halfway for _, halfway in deaths)
    report(record_property, f"{name}: {len(deaths)} crash points ({kinds(died_at)}; {half_writes} half writes)")
    keep("crash points", name, crash_points=len(deaths), half_writes_among_them=half_writes)
    assert plan or name == "restart", "only an idle restart does nothing"


@pytest.mark.parametrize("name", SCENARIOS)
def test_dying_again_and_again_it_comes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each process gets one step further than the one before it."""
    scenario = SCENARIOS[name]
    base = prepared(scenario, tmp_path / "base", monkeypatch)
    life = clone(base, tmp_path / "undisturbed")
    daemon, _ = lived(scenario, life, Steps(), monkeypatch)
    expected = life.end(daemon)
    life = clone(base, tmp_path / "again")
    life.begin(scenario)
    life.meddle(scenario)
    life.machine.node = scenario.then or scenario.of
    for number in range(500):
        steps = Steps(dies_at=number)
        with watched(monkeypatch, life.machine, steps):
            daemon = life.daemon(scenario.after, steps)
            try:
                daemon.start()
                settle(daemon)
            except CrashError:
                continue
        break
    assert len(steps.done) <= number, "it did not die at last"
    keep("deaths in a row", name, deaths=number)
    assert life.end(daemon) == expected
