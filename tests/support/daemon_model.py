"""The real daemon's turns over the model of launcher, kernel and clock, with real state files: every call into an edge is a step.

A step can be the last one (the process dies before it, or in the middle of a write), and a call that changes a file can fail.
"""

import errno
import io
import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.node_capacity import allocatable_of
from nodeagent.core.admission.node_setup import NodeSetup as DaemonNode
from nodeagent.core.cgroups.container_placement import ContainerPlacement, container_placements
from nodeagent.core.cgroups.desired_cgroups import pod_cgroups
from nodeagent.core.cgroups.write_order import InPlace, Plan, diff
from nodeagent.core.domains.domain import Domain
from nodeagent.core.host.settings import Cpus, Setting, SettingKind, Value
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup, ObservedCgroup, ObservedCgroups, UnitSettings
from nodeagent.core.model.cgroup_layout import PAYLOAD, is_above, is_pooled
from nodeagent.core.model.config import Config
from nodeagent.core.model.devices import PlacedDevices
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Container, Pod
from nodeagent.core.model.state import NodeState, has_only_starts
from nodeagent.core.model.topology import Topology
from nodeagent.core.turn.actions import (
    Action,
    Forget,
    KillCgroup,
    Launch,
    Terminate,
    TerminateAll,
    list_actions,
)
from nodeagent.core.turn.decision import Decide, admit_off_orphans
from nodeagent.core.turn.lifecycle import is_unsettled
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.step import step
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.all import make_domains
from nodeagent.daemon.domains.jobs.jobs import Jobs, job_directory
from nodeagent.daemon.domains.jobs.reservations import Reservations
from nodeagent.daemon.domains.systemd.unit_cgroups import UnitCgroups, read_cgroups
from nodeagent.daemon.domains.systemd.unit_records import UnitRecords
from nodeagent.daemon.host.host_edges import Reading
from nodeagent.daemon.host.host_settings import HostSettings
from nodeagent.daemon.plugins.device_plugins import DevicePlugins
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.start.recovery import Evidence, log_recovery, start_state
from nodeagent.daemon.turn import (
    act as act_module,
    agent as agent_module,
    clock as clock_module,
    confirm as confirm_module,
    decide as decide_module,
    plan as plan_module,
    report as report_module,
    runs as runs_module,
)
from nodeagent.daemon.turn.agent import Agent
from nodeagent.daemon.turn.claim_statuses import ClaimStatuses
from nodeagent.daemon.turn.edges import Edges
from nodeagent.daemon.turn.machine import remove_withheld_cpus
from nodeagent.daemon.turn.placements import Placements, placement_directory
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.records import Recorder
from nodeagent.daemon.turn.runs import Runner
from nodeagent.daemon.turn.wakeups import WakeUpReason, Wakeups
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.readings import SUBTREE_CONTROL, CgroupReadings
from nodeagent.edge.files import state_files
from nodeagent.edge.files.placement_files import PlacementFileError, PlacementFiles
from nodeagent.edge.processes.launcher import Changes, LauncherError
from nodeagent.edge.systemd.units import UnitsError
from nodeagent.formats.kernel.host_files import describe_setting
from nodeagent.formats.kernel.unit_names import slices_around
from nodeagent.formats.kernel.unit_properties import LOADED, UnitProperties
from nodeagent.formats.wire.launcher_protocol import (
    Exited,
    Killed,
    Returned,
    Running,
    RunStatus,
    StartFailed,
    StartRequest,
    StartStage,
    UnknownEnd,
)
from tests.support.node_model import CrashError, Machine
from tests.support.pods import manifests
from tests.support.world import Node

T = TypeVar("T")
ROOT = Path("/pods")
SLICE = "system.slice"
"""Where systemd has its units."""
DEAF = "cannot send SIGTERM"
RUNTIME = ".run"
"""The runtime directory, in the state directory: one copy has both."""
ANYWHERE = ContainerPlacement(CpuSet(), CpuSet(), NumaSet())
"""Where what is launched runs, if that doesn't matter."""


def daemon_node(of: Node, directory: Path, **config: Any) -> DaemonNode:
    topology = of.managers.topology
    fields = {"state_directory": str(directory), "runtime_directory": str(directory / RUNTIME)}
    configured = replace(of.config, **(fields | config))
    room = allocatable_of(
        configured, cpu_count=len(topology.online), memory_bytes=topology.memory_bytes, hugepages=topology.hugepages
    )
    return DaemonNode(configured, topology, of.managers, room, of.managers.reserved)


@dataclass
class Steps:
    """Every call into an edge that changes something, in order; and what is to go wrong."""

    done: list[str] = field(default_factory=list)
    dies_at: int | None = None
    """The step before which the process dies."""
    halfway: bool = False
    """It dies in that step, if that is a write: half of it is done."""
    fails: Callable[[int, str], int | None] = lambda _number, _call: None
    """(how many calls that change files there were, which one comes) → the errno with which it fails."""
    files: int = 0
    granted: CpuSet = CpuSet()
    """CPUs that a cgroup was given for itself in this turn."""
    denies: Callable[[str], CgroupError | None] = lambda _name: None
    """A step that writes to a cgroup → the kernel's answer, if that is no."""

    def deny(self, name: str, do: Callable[[], None] = lambda: None) -> None:
        """Do a write to a cgroup, or let it fail."""
        self.take(name)
        denied = self.denies(name)
        if denied is not None:
            raise denied
        do()

    def take(self, name: str) -> bool:
        """Do a step. True: only half of it."""
        if len(self.done) == self.dies_at:
            if not (self.halfway and name.startswith("write ")):
                raise CrashError(name)
            return True
        self.done.append(name)
        return False


class _WatchedOs:
    """The module os as state files see it."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _called(self, name: str, path: object) -> bool:
        number, self._steps.files = self._steps.files, self._steps.files + 1
        error = self._steps.fails(number, name)
        if error is not None:
            raise OSError(error, os.strerror(error), str(path))
        return self._steps.take(f"{name} {Path(str(path)).name}")

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            self._called("open", path)
        return os.open(path, flags, mode)

    def write(self, descriptor: int, data: memoryview) -> int:
        if self._called("write", Path(f"/proc/self/fd/{descriptor}").readlink()):
            os.write(descriptor, data[: len(data) // 2])
            raise CrashError("write")
        return os.write(descriptor, data)

    def fsync(self, descriptor: int) -> None:
        self._called("fsync", Path(f"/proc/self/fd/{descriptor}").readlink())

    def fchmod(self, descriptor: int, mode: int) -> None:
        self._called("fchmod", Path(f"/proc/self/fd/{descriptor}").readlink())
        os.fchmod(descriptor, mode)

    def replace(self, old: str, new: str) -> None:
        self._called("replace", new)
        Path(old).replace(new)

    def rename(self, old: str, new: str) -> None:
        self._called("rename", new)
        Path(old).rename(new)

    def link(self, old: str, new: str, **more: Any) -> None:
        self._called("link", new)
        os.link(old, new, **more)

    def unlink(self, path: str) -> None:
        if not os.path.lexists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._called("unlink", path)
        Path(path).unlink()


@dataclass
class Tree:
    """The cgroups, as cgroupfs has them."""

    machine: Machine
    steps: Steps
    after: Callable[[], None]
    root: Path = ROOT

    @property
    def processes(self) -> "Tree":
        return self

    def read(self, _own: frozenset[str]) -> dict[str, Any]:
        return self.machine.observed(lambda path: not is_above(path))

    def __post_init__(self) -> None:
        def list_children(path: str) -> list[str]:
            start = f"{path}/" if path else ""
            return [
                name
                for p in self.machine.groups
                if p.startswith(start) and "/" not in (name := p[len(start) :]) and name
            ]

        def read(path: str, _changed: AbstractSet[str] | None) -> ObservedCgroup | None:
            return self.machine.observed(path.__eq__).get(path)

        self._readings = CgroupReadings(read, list_children)
        self._told: dict[str, ObservedCgroup] = {}
        """Everything, as of the last reading."""

    def read_changed(self, own: frozenset[str], part: float) -> Mapping[str, ObservedCgroup]:
        """As the kernel tells of changes: not of effective values, and not of affinities."""
        before, self._told = self._told, self.read(own)
        for path in before.keys() ^ self._told.keys():
            self._readings.doubt(path)
        for path in before.keys() & self._told.keys():
            old, new = before[path], self._told[path]
            if old.subtree_control != new.subtree_control:
                self._readings.doubt(path, SUBTREE_CONTROL)
            for attribute in Attribute:
                if old.get(attribute) != new.get(attribute):
                    self._readings.doubt(path, attribute.value)
            if (old.is_populated, old.is_frozen, old.oom_kills) != (new.is_populated, new.is_frozen, new.oom_kills):
                self._readings.doubt(path, "cgroup.events")
        if part >= 1:
            self._readings.doubt_all()
        if part and self.machine.has_partitions:
            self._readings.doubt_containers()
        return self._readings.refresh(own, part)

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def doubt(self, _path: str) -> None:
        """Everything is read each time."""

    def read_above(self) -> dict[str, Any]:
        return self.machine.observed(is_above)

    def read_foreign(self, directory: str) -> ObservedCgroup | None:
        path = directory.removeprefix("/sys/fs/cgroup").removeprefix("/")
        name = path.removeprefix(f"{SLICE}/")
        if name in self.machine.units:
            return self.machine.observed_unit(name, path) if self.machine.units[name].is_active else None
        assert path in {"", SLICE}, f"nobody should look at {directory}"
        host = self.machine.left_to_host()
        return ObservedCgroup(
            path,
            frozenset(),
            frozenset(),
            (),
            host,
            self.machine.node.kernel.memory_nodes,
            is_populated=True,
            is_frozen=False,
        )

    def read_chain(self) -> tuple[tuple[str, CpuSet], ...] | None:
        above = self.machine.node.kernel.online
        return ((str(self.root.parent), above), (str(self.root), above - self.machine.withheld))

    def apply(self, change: Any) -> None:
        name = f"cgroup {type(change).__name__} {change.path} {getattr(change, 'attribute', '')}"
        self._readings.doubt(change.path)
        self.steps.deny(name, lambda: self.machine.apply(change))
        self.steps.granted |= getattr(change, "grants", CpuSet())
        self.after()

    def has_left(self, path: str, pid: int, _start_ticks: int) -> bool:
        runs = self.machine.runs
        return all(runs[p.run_id].pid != pid for p in self.machine.groups[path].processes if p.run_id)

    def bring_back(self, path: str, pid: int, _start_ticks: int) -> bool:
        found = [p for p in self.machine.strays if p.run_id and self.machine.runs[p.run_id].pid == pid]
        if not found:
            return False
        (process,) = found
        self.steps.deny(f"return {path}", lambda: self.machine.fetch(process, path))
        self.after()
        return True

    def take_in(self, path: str, _pid: int, is_alive: Callable[[], bool]) -> bool:
        self.steps.take(f"take in {path}")
        if not is_alive():
            return False
        self.machine.enter(path)
        self.after()
        return True

    def kill(self, path: str) -> None:
        self.steps.deny(f"kill {path}", lambda: self.machine.act(KillCgroup(path)))
        self.after()

    def terminate(self, path: str) -> None:
        if self.machine.is_deaf:
            raise CgroupError(DEAF, path=path, error=errno.EINVAL, hint="it is denied on purpose")
        self.steps.take(f"terminate {path}")
        self.machine.act(TerminateAll("", path))
        self.after()


@dataclass
class SystemdModel:
    """systemd, which has the machine's units in one slice."""

    machine: Machine
    steps: Steps
    after: Callable[[], None]

    def show(self, names: Collection[str], /) -> dict[str, UnitProperties]:
        if not self.machine.systemd_answers:
            raise UnitsError("systemd has not answered for 5 s", hint="see `systemctl list-jobs`")
        return {
            name: UnitProperties(name, LOADED, f"{SLICE}/{name}", unit.settings, is_down=not unit.is_active)
            if (unit := self.machine.units.get(name)) is not None
            else UnitProperties(name, "not-found", "", UnitSettings(), is_down=True)
            for name in names
        }

    def set(self, unit: str, /, *, cpus: CpuSet | None = None, memory_nodes: NumaSet | None = None) -> None:
        self.steps.take(f"systemd {unit} {cpus} {memory_nodes}")
        self.machine.set_unit(unit, cpus, memory_nodes)
        self.after()


class WatchedPlacementFiles(PlacementFiles):
    """Each file that is written or removed is a step; a half one is left under its temporary name."""

    def __init__(self, directory: str, steps: Steps) -> None:
        super().__init__(directory)
        self._steps = steps

    def _called(self, doing: str, name: str) -> bool:
        number, self._steps.files = self._steps.files, self._steps.files + 1
        error = self._steps.fails(number, doing)
        if error is not None:
            raise PlacementFileError(f"cannot {doing} {name}: {os.strerror(error)}", path=name, error=error, hint="df")
        return self._steps.take(f"{doing} placement {name}")

    def write(self, name: str, content: bytes) -> None:
        if self._called("write", name):
            pod, _, container = name.partition("/")
            super().write(f"{pod}/.{container}.new", content[: len(content) // 2])
            raise CrashError("write")
        super().write(name, content)

    def remove(self, name: str) -> None:
        self._called("unlink", name)
        super().remove(name)


@dataclass
class Client:
    """The launcher's socket."""

    machine: Machine
    steps: Steps
    requests: list[StartRequest] = field(default_factory=list)

    def list_changes(self, _since: str) -> Changes:
        return Changes(tuple(map(self._status, self.machine.runs.values())), (), token="", is_whole=True)

    def _status(self, run: Any) -> RunStatus:
        if run.exit is None:
            return Running(run.id, run.pid, 1, "boot", None, run.started_at_ms)
        end = (
            Killed(run.exit.signal, core_dumped=False)
            if run.exit.signal is not None
            else UnknownEnd.LAUNCHER_RESTARTED
            if run.exit.code is None
            else Returned(run.exit.code)
        )
        return Exited(run.id, 1, None, run.started_at_ms, run.exit.finished_at_ms, end)

    def start(self, request: StartRequest) -> RunStatus | StartFailed:
        try:
            self.steps.deny(f"start {request.id}")
        except CgroupError as err:
            return StartFailed(request.id, StartStage.CGROUP, err.errno or 0, err.message)
        self.requests.append(request)
        path = str(request.cgroup).removeprefix(f"{ROOT}/")
        assert path.endswith(f"/{PAYLOAD}") != is_pooled(path)
        path = path.removesuffix(f"/{PAYLOAD}")
        entry: Any = None
        self.machine.act(Launch(request.id, entry, Container(request.id.split("/")[1]), path, ANYWHERE))
        run = self.machine.runs[request.id]
        if run.exit is not None and run.exit.start_error is not None:
            del self.machine.runs[request.id]
            return StartFailed(request.id, StartStage.EXEC, errno.ENOENT, run.exit.start_error)
        return self._status(run)

    def signal(self, run_id: str, number: int) -> bool:
        if self.machine.is_deaf and number == signal.SIGTERM:
            raise LauncherError(ROOT, DEAF)
        self.steps.take(f"signal {run_id}")
        self.machine.act(Terminate(run_id))
        return True

    def ack(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        self.steps.take(f"ack {' '.join(ids)}")
        known = tuple(i for i in ids if i in self.machine.runs)
        self.machine.act(Forget(known))
        return known


@dataclass
class HostSettingsModel:
    """The settings of the host, and the launcher's writes to them."""

    machine: Machine
    steps: Steps
    placed: frozenset[Setting] = frozenset()
    """Units whose processes the agent places."""

    def read(
        self,
        kinds: AbstractSet[SettingKind],
        *,
        pinned: Mapping[str, CpuSet] = {},
        known: Collection[Setting] = (),
        rescan: bool = True,
    ) -> Reading:
        del rescan  # nothing is remembered here
        units = (*filter(pinned.get, pinned), *(setting.name for setting in known if setting.kind is SettingKind.UNIT))
        slices = {"", *(around for path in units for around in slices_around(path))}
        of_units = {
            Setting(SettingKind.UNIT, f"{SLICE}/{name}"): unit.settings.allowed_cpus
            or self.machine.node.managers.topology.online
            for name, unit in self.machine.units.items()
            if unit.is_active
        }
        there = {
            setting: cpus
            for setting, cpus in {**self.machine.shown_settings(), **of_units}.items()
            if setting.kind in kinds
            and setting.name not in pinned
            and (setting.kind is not SettingKind.UNIT or setting.name.rpartition("/")[0] in slices)
        }
        failed = {kind: err for kind, err in self.machine.unreadable.items() if kind in kinds}
        found = {s: cpus for s, cpus in there.items() if s.kind not in failed and (s not in self.placed or s in known)}
        facts = {s: i for s, i in self.machine.facts.items() if s in found}
        values = {s: value for s, value in self.machine.values.items() if s.kind in kinds - failed.keys()}
        return Reading({**found, **values}, facts, failed, self.placed & found.keys())

    def cpus(self, host: CpuSet) -> Cpus:
        possible = self.machine.node.managers.topology.online
        return Cpus(possible, host, hidden=possible - self.machine.left_to_host())

    def interrupts_of(self, device: str) -> frozenset[Setting]:
        return frozenset(self.machine.devices.get(device, ()))

    def write(self, values: Mapping[Setting, Value]) -> dict[Setting, str]:
        if not self.machine.launcher_answers:
            raise LauncherError(ROOT, "it does not answer")
        return {setting: why for setting, cpus in values.items() if (why := self._write(setting, cpus)) is not None}

    def _write(self, setting: Setting, value: Value) -> str | None:
        self.steps.take(f"setting {describe_setting(setting)}")
        if setting in self.machine.immovable:
            return os.strerror(errno.EIO)
        if isinstance(value, str):
            self.machine.values[setting] = value
            return None
        name = setting.name.removeprefix(f"{SLICE}/")
        if setting.kind is SettingKind.UNIT and name in self.machine.units:
            self.machine.set_unit(
                name, CpuSet() if value == self.machine.node.managers.topology.online else value, None
            )
            return None
        left = self.machine.settings[setting] - value
        # systemd also steps in for a partition that has just been refused, and kernel threads are moved
        is_for_it = setting.kind in {SettingKind.UNIT, SettingKind.THREAD}
        assert is_for_it or not left & self.steps.granted, f"{setting} leaves {left} too late"
        self.machine.settings[setting] = value
        return None


@dataclass
class Files:
    """The manifest directory."""

    pods: tuple[Pod, ...] = ()
    look_again: PodSource | None = None

    def look(self, *, rescan: bool, part: float = 1.0) -> PodSource:
        assert rescan in {True, False}
        assert 0 <= part <= 1
        return self.look_again or PodSource(manifests(*self.pods))

    def follow(self, config: Config) -> None:
        """Nothing of it matters here."""


def answered(daemon: "Daemon", ask: Callable[[], T]) -> T:
    """Let another thread ask, and the agent do the turns that somebody asks for, and those that turns ask for, until there is an answer."""
    with ThreadPoolExecutor(1) as pool:
        asked, due = pool.submit(ask), math.inf
        while not asked.done():
            reasons = daemon.agent.wakeups.wait(0.01)
            if reasons & {WakeUpReason.REQUEST, WakeUpReason.JOBS} or time.monotonic() >= due:
                due = time.monotonic() + daemon.turn(*(reasons or {WakeUpReason.TIMER}))
    return asked.result()


@dataclass
class Hardware:
    """What the agent finds when it looks at the machine again."""

    topology: Topology
    placed: PlacedDevices = field(default_factory=PlacedDevices)
    looks: int = 0
    """At devices."""

    def look(self, _known: Topology) -> Topology:
        return self.topology

    def devices(self, _topology: Topology) -> PlacedDevices:
        self.looks += 1
        return self.placed


@dataclass
class Daemon:
    """One process after the other over the same machine and the same directory."""

    machine: Machine
    directory: Path
    files: Files = field(default_factory=Files)
    steps: Steps = field(default_factory=Steps)
    judge: Callable[["Daemon"], None] = lambda _daemon: None
    """Called after everything that the agent does to the machine."""
    alive: Callable[[], None] = lambda: None
    """Called after each part of a turn."""
    log: io.StringIO = field(default_factory=io.StringIO)
    config: dict[str, Any] = field(default_factory=dict)
    requests: list[StartRequest] = field(default_factory=list)
    """What the launcher was asked to start."""
    standing: tuple[Problem, ...] = ()
    """Current problems of other parts of the agent."""
    told: list[tuple[int, int, str]] = field(default_factory=list)
    """Lines for terminals: the terminal's number, its users, and the line."""
    boot: str = "boot"
    placed: PlacedDevices = field(default_factory=PlacedDevices)
    """What each process finds when it looks at devices for the first time."""
    plugins: DevicePlugins | None = None
    more_domains: tuple[Domain, ...] = ()
    """Domains beside the agent's own four."""

    def start(self) -> Agent:
        """A new process, up to its first turn."""
        log = make_log(self.log)
        whole = daemon_node(self.machine.node, self.directory, **self.config)
        tree, client = self.make_tree(), self.make_client()
        self.hardware = Hardware(whole.topology, self.placed)
        hardware: Any = self.hardware
        node, _ = remove_withheld_cpus(whole, tree)
        Path(node.config.runtime_directory).mkdir(exist_ok=True)
        runner = Runner(client) if self.plugins is None else Runner(client, self.plugins.prepare)
        host = HostSettingsModel(self.machine, self.steps)

        systemd = SystemdModel(self.machine, self.steps, lambda: self.judge(self))

        def look() -> Evidence:
            runs = runner.look()
            units = UnitCgroups(tree, systemd, recorded=UnitRecords(node.config).look)
            observed = read_cgroups(tree, units, tuple(manifest.pod for manifest in pods))
            return Evidence(observed, {} if isinstance(runs, Problem) else runs)

        wakeups = Wakeups()
        reservations = Reservations(str(self.directory), lambda: wakeups.wake(WakeUpReason.JOBS), log)
        self.jobs = Jobs(PlacementFiles(job_directory(node.config)), reservations, reservations.wake)
        pods = tuple(pod for source in (self.files, self.jobs) for pod in source.look(rescan=True).pods)
        start = start_state(node, pods, self.machine.now_ms, look)
        assert start is not None
        if start.recovery is not None:
            log_recovery(start.recovery, log)
        unusable = () if start.recovery is None else start.recovery.unusable
        edges = Edges(
            log=log,
            machine=hardware,
            domains=(
                *make_domains(
                    node.config, tree, readers=(self.files,), jobs=self.jobs, systemd=systemd, tell=self.tell
                ),
                *self.more_domains,
            ),
            runner=runner,
            tree=tree,
            recorder=Recorder(str(self.directory), log, unusable=unusable),
            host_settings=HostSettings(host, str(self.directory), self.boot, log),
            placements=Placements(WatchedPlacementFiles(placement_directory(node.config), self.steps)),
            claim_statuses=ClaimStatuses(node.config),
            alive=self.alive,
            plugins=self.plugins,
        )
        self.agent = Agent(node, start.state, edges, wakeups, start.recovery)
        self.jobs.retry = self.agent.retry
        return self.agent

    def tell(self, session: int, ticks: int, line: str) -> None:
        """Write a line to a session's terminal, as the launcher does."""
        self.steps.take(f"tell {session}")
        self.told.append((session, ticks, line))

    def make_tree(self) -> Any:
        return Tree(self.machine, self.steps, lambda: self.judge(self))

    def make_client(self) -> Any:
        return Client(self.machine, self.steps, self.requests)

    def turn(self, *reasons: WakeUpReason) -> float:
        self.steps.granted = CpuSet()
        pause = self.agent.turn(frozenset(reasons or {WakeUpReason.MANIFESTS}), self.standing)
        self.check_derived()
        return pause

    def check_derived(self) -> None:
        """Compare what is kept from turn to turn with the same made from scratch."""
        memory = self.agent.memory
        inputs: Any = memory.pod_cgroups.common
        if inputs:
            config, managers, kernel, _ = inputs
            assert memory.pod_cgroups.by_key() == pod_cgroups(config, managers, kernel, memory.state).by_key()
            placed = container_placements(managers, memory.state, memory.in_sync)
            assert memory.placements.by_key() == placed.by_key()
        metrics = self.agent.metrics
        assert metrics.counted == Counter(series for _, pod in metrics.pods.kept.values() for series in pod.counted)

    def rest(self, turns: int = 40) -> None:
        """Turn until nothing changes any more, letting time pass only where something waits for it."""
        for _ in range(turns):
            before = self._everything()
            pause = self.turn()
            if self._everything() == before and pause > 0:
                return
        raise AssertionError(f"no rest after {turns} turns: {self.agent.view.problems}")

    def _everything(self) -> object:
        machine = self.machine
        groups = {p: (tuple(g.values.items()), len(g.processes)) for p, g in machine.groups.items()}
        units = tuple(unit.settings for unit in machine.units.values())
        return self.agent.state, groups, units, tuple(machine.runs.items())

    def said(self) -> list[dict[str, Any]]:
        """The log. Every line about a pod is found by its UID."""
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        assert [line for line in lines if ("pod" in line) != ("pod_uid" in line)] == []
        return lines


def _step_twice(state: NodeState, world: World, decide: Decide = admit_off_orphans) -> Turn:
    turn = step(state, world, decide)
    if world.quiet and not (world.managers.plugged or world.managers.cpu_plugins):
        assert turn == step(state, replace(world, quiet=frozenset()))
    return turn


def _diff_twice(desired: Iterable[DesiredCgroup], observed: ObservedCgroups, in_place: InPlace) -> Plan:
    found = diff(desired, observed, in_place)
    assert found == diff(desired, observed)
    return found


def _list_actions_twice(state: NodeState, world: World, *more: Any) -> list[Action]:
    actions = list(list_actions(state, world, *more))
    assert actions == list(list_actions(state, replace(world, quiet=frozenset()), *more))
    assert not any(
        e.pod.uid in world.quiet and is_unsettled(e, world.runs or {}, world.observed) for e in state.entries
    )
    return actions


def is_as_saved(state: NodeState, saved: NodeState) -> bool:
    """Tell whether an agent that starts with a saved state comes to this state. It finds confirmed starts again."""
    return saved == state or has_only_starts(saved, state)


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch, machine: Machine, steps: Steps) -> Iterator[None]:
    """State files and clock of the daemon are those of the model. What skips quiet pods is compared with what looks at all."""
    clock = SimpleNamespace(
        monotonic=lambda: 0.0,
        time_ns=lambda: machine.now_ms * 1_000_000,
        clock_gettime_ns=lambda _boot: (machine.now_ms - machine.set_by_ms) * 1_000_000,
        CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
        CLOCK_MONOTONIC=time.CLOCK_MONOTONIC,
    )
    with monkeypatch.context() as patched:
        patched.setattr(state_files, "os", _WatchedOs(steps))
        patched.setattr(agent_module, "time", clock)
        patched.setattr(clock_module, "time", clock)
        patched.setattr(report_module, "time", clock)
        patched.setattr(runs_module, "time", clock)
        patched.setattr(decide_module, "step", _step_twice)
        patched.setattr(confirm_module, "step", _step_twice)
        patched.setattr(confirm_module, "diff", _diff_twice)
        patched.setattr(confirm_module, "list_actions", _list_actions_twice)
        patched.setattr(act_module, "list_actions", _list_actions_twice)
        patched.setattr(plan_module, "diff", _diff_twice)
        yield


@contextmanager
def at_rest(monkeypatch: pytest.MonkeyPatch, directory: Path, of: Node, pods: tuple[Pod, ...] = ()) -> Iterator[Daemon]:
    """An agent that has started on this node, and has nothing more to do."""
    machine = Machine(of)
    daemon = Daemon(machine, directory, Files(pods), Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        daemon.rest()
        yield daemon
