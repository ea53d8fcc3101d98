"""A model that plays launcher, kernel and clock, and the agent's turn over it without its edges.

The model keeps to the kernel's rules as far as the agent's decisions rest on them: files follow the parent's controllers, an empty cpuset
grants the parent's, a cgroup without a cpuset has that of the nearest one above, a frozen cgroup freezes those below, frozen processes
don't run, a cgroup with processes can't be removed.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.admission.what_if import WhatIf
from nodeagent.core.cgroups.container_placement import container_placements
from nodeagent.core.cgroups.desired_cgroups import desired_cgroups, path_to_partitions
from nodeagent.core.cgroups.write_order import (
    Change,
    EnableControllers,
    GatherThreads,
    GiveUnitBack,
    MakeCgroup,
    Plan,
    RemoveCgroup,
    SetAttribute,
    diff,
)
from nodeagent.core.host.settings import NEW_IRQS, Facts, Setting, SettingKind
from nodeagent.core.model.cgroup import (
    MEMBER,
    Attribute,
    ByteLimit,
    CpuMax,
    DesiredCgroup,
    ObservedCgroup,
    Partition,
    PartitionKind,
    UnitSettings,
    Value,
)
from nodeagent.core.model.cgroup_layout import ABOVE, PAYLOAD, cpuset_path, is_pinned, unit_at
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.state import Exit, NodeState
from nodeagent.core.resources.cpu.holdings import default_set, own_set_of
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.cpu.restore import list_allocated_cpus
from nodeagent.core.turn.actions import (
    Action,
    Forget,
    KillCgroup,
    KillMain,
    Launch,
    Terminate,
    TerminateAll,
    list_actions,
    list_stopping,
)
from nodeagent.core.turn.lifecycle import Run, is_unsettled
from nodeagent.core.turn.pod_sources import Manifest, PodSource, find_effective, list_manifests
from nodeagent.core.turn.step import step
from nodeagent.core.turn.world import EventKind, SeenRoom, Turn, TurnEvent, World
from nodeagent.daemon.domains.systemd.unit_cgroups import unit_paths
from nodeagent.daemon.turn.drift import cgroups_in_sync
from nodeagent.daemon.turn.execution import ExecutionResult, execute
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError, MemoryInUseError
from nodeagent.errors import NodeAgentError
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state, policies_of
from tests.support.pods import manifests
from tests.support.world import START_MS, Node, empty_state

_PARTITION_FILES: tuple[tuple[Attribute, Value], ...] = (
    (Attribute.CPUSET_CPUS_EXCLUSIVE, CpuSet()),
    (Attribute.CPUSET_CPUS_PARTITION, MEMBER),
)
_CONTROLLER_FILES: Mapping[str, tuple[tuple[Attribute, Value], ...]] = {
    "cpuset": ((Attribute.CPUSET_CPUS, CpuSet()), (Attribute.CPUSET_MEMS, NumaSet())),
    "cpu": ((Attribute.CPU_WEIGHT, 100), (Attribute.CPU_MAX, CpuMax(None, 100_000))),
    "memory": (
        (Attribute.MEMORY_MAX, ByteLimit(None)),
        (Attribute.MEMORY_SWAP_MAX, ByteLimit(None)),
        (Attribute.MEMORY_OOM_GROUP, False),
    ),
}


class Process(Struct):
    run_id: str | None
    """None: it was not started by the launcher: a child of a container's process, or it entered by itself."""
    is_stubborn: bool = False
    """SIGTERM doesn't end it."""


@dataclass
class Group:
    """One cgroup directory."""

    values: dict[Attribute, Value] = field(default_factory=dict)
    enabled: set[str] = field(default_factory=set)
    has_payload: bool = False
    elsewhere: CpuSet = field(default_factory=CpuSet)
    """CPUs to which the kernel has driven its processes."""
    processes: list[Process] = field(default_factory=list)
    is_unkillable: bool = False
    """Its processes hang in the kernel: not even cgroup.kill ends them."""
    oom_kills: int = 0


@dataclass
class Unit:
    """A unit of systemd's."""

    settings: UnitSettings = field(default_factory=UnitSettings)
    is_active: bool = True
    before: UnitSettings | None = None
    """What it had before it was told anything. None: it was told nothing."""
    is_settled: bool = False
    """It has got its CPUs: who comes from everywhere leaves the rest first, and is told the same once more when all others have left."""

    @property
    def is_placed(self) -> bool:
        """Whether it has other CPUs than before."""
        return self.before is not None and self.settings.allowed_cpus != self.before.allowed_cpus


class CrashError(Exception):
    """The agent died here."""


_OF_ONE_CPU = {
    SettingKind.IDLE_LATENCY: "0",
    SettingKind.GOVERNOR: "powersave",
    SettingKind.MIN_FREQUENCY: "800000",
    SettingKind.MAX_FREQUENCY: "3500000",
    SettingKind.BOOST: "1",
}


class Machine:
    """Launcher, kernel and clock. Everything here outlives the agent."""

    def __init__(self, of: Node) -> None:
        self.node = of
        self.now_ms = START_MS
        self.boot_id = "a boot"
        self.set_by_ms = 0
        """By how much the wall clock was set since boot."""
        self.groups: dict[str, Group] = {"": Group()}
        self.units: dict[str, Unit] = {}
        """Those that systemd knows, by name."""
        self.runs: dict[str, Run] = {}
        self.withheld = CpuSet()
        """CPUs that a cgroup above the pods' one does not grant."""
        self.strays: list[Process] = []
        """Main processes that have left their container's cgroup."""
        self.launcher_answers = self.systemd_answers = True
        self.is_deaf = False
        """No process can be sent SIGTERM."""
        self.unstartable: set[str] = set()
        """Names of containers whose program isn't there."""
        self.stubborn: set[str] = set()
        """Names of containers that ignore SIGTERM."""
        self.starts: list[str] = []
        """Every run that came to be, in order."""
        self.signals: list[tuple[str, str]] = []
        """(TERM or KILL, run id or path), in order."""
        self.writes: list[Change] = []
        self.in_use: dict[str, int] = {}
        """Bytes of memory that the processes of a cgroup use."""
        self.broken: dict[tuple[str, Attribute | type[object]], str] = {}
        """Changes that fail: (path, attribute or kind of change) → message."""
        self.limits_swap = True
        """Its cgroups have `memory.swap.max`."""
        self.has_partitions = of.config.host_isolation != "none"
        """The kernel is 6.7 or later."""
        online = of.managers.topology.online
        self.settings: dict[Setting, CpuSet] = {
            Setting(SettingKind.IRQ, "24"): online,
            Setting(SettingKind.IRQ, "25"): CpuSet.of(*list(online)[1:3]),
            NEW_IRQS: online,
            Setting(SettingKind.QUEUE, "eth0/queues/rx-0/rps_cpus"): CpuSet(),
            Setting(SettingKind.WORKQUEUE): online,
            Setting(SettingKind.THREAD, "7@1"): online,
            Setting(SettingKind.UNIT, "system.slice"): online,
            Setting(SettingKind.IRQBALANCE): online,
            Setting(SettingKind.BALANCING, "24"): online,
            Setting(SettingKind.BALANCING, "25"): online,
        }
        """Those of the host that name CPUs."""
        self.values = {Setting(kind, str(cpu)): value for cpu in online for kind, value in _OF_ONE_CPU.items()}
        self.values |= {Setting(SettingKind.MACHINE_BOOST, "cpufreq/boost"): "1"}
        """Settings of one CPU."""
        self.facts: dict[Setting, Facts] = {}
        """What else the kernel says of them."""
        self.devices = {"eth0": (Setting(SettingKind.IRQ, "25"),)}
        """Their interrupts."""
        self.immovable: set[Setting] = set()
        """Settings that nobody can change, although they look as if one could."""
        self.unreadable: dict[SettingKind, NodeAgentError] = {}
        self.refused: list[Change] = []
        """Changes that went against the kernel's rules for partitions."""
        if self.has_partitions:
            self.groups[ABOVE] = Group()

    def set_clock(self, by_ms: int) -> None:
        """Set the wall clock; no time passes."""
        self.now_ms += by_ms
        self.set_by_ms += by_ms

    # what the agent sees

    def observed(self, wanted: Callable[[str], bool] = lambda _path: True) -> dict[str, ObservedCgroup]:
        return {path: self._observed_cgroups(path) for path in sorted(self.groups) if wanted(path)}

    def _observed_cgroups(self, path: str) -> ObservedCgroup:
        group = self.groups[path]
        if path == ABOVE:
            return ObservedCgroup(
                path,
                frozenset(),
                frozenset(),
                ((Attribute.CPUSET_CPUS_EXCLUSIVE, self.handed_down(path)),),
                None,
                None,
                is_populated=False,
                is_frozen=False,
            )
        everything = frozenset({"cpuset", "cpu", "memory"})
        above = self.groups[_parent(path)].enabled if path else set(everything)
        attributes: dict[Attribute, Value] = {}
        for controller, files in _CONTROLLER_FILES.items():
            if controller in above and path:
                attributes |= {name: group.values.get(name, default) for name, default in files}
        if not self.limits_swap:
            attributes.pop(Attribute.MEMORY_SWAP_MAX, None)
        elif not path:
            attributes[Attribute.MEMORY_SWAP_MAX] = ByteLimit(None)
        if Attribute.CPUSET_CPUS in attributes:
            attributes[Attribute.CPUSET_CPUS] = self.listed(path)
        if self.has_partitions and "cpuset" in above:
            attributes |= {name: group.values.get(name, default) for name, default in _PARTITION_FILES}
        if group.has_payload and "cpuset" in group.enabled:
            attributes[Attribute.FALLBACK_CPUS] = group.values.get(Attribute.FALLBACK_CPUS, CpuSet())
        if path:
            attributes[Attribute.FREEZE] = group.values.get(Attribute.FREEZE, False)
        return ObservedCgroup(
            path=path,
            controllers=everything if not path else frozenset(above),
            subtree_control=frozenset(group.enabled),
            attributes=tuple(attributes.items()),
            cpus_effective=self.granted(path) if "cpuset" in above else None,
            mems_effective=None,
            is_populated=self.is_populated(path),
            is_frozen=self.is_frozen(path),
            oom_kills=group.oom_kills,
            elsewhere=group.elsewhere,
        )

    def observed_units(self, paths: Iterable[str]) -> dict[str, ObservedCgroup]:
        """The cgroups of units, by what stands for them."""
        return {path: self.observed_unit(unit_at(path), path) for path in sorted(paths) if unit_at(path) in self.units}

    def observed_unit(self, name: str, path: str) -> ObservedCgroup:
        unit = self.units[name]
        given: tuple[tuple[Attribute, CpuSet | NumaSet], ...] = (
            (Attribute.CPUSET_CPUS, unit.settings.allowed_cpus),
            (Attribute.CPUSET_MEMS, unit.settings.allowed_memory_nodes),
        )
        nodes = self.node.kernel.memory_nodes
        return ObservedCgroup(
            path,
            frozenset(),
            frozenset(),
            tuple(each for each in given if each[1]),
            self.granted_to_unit(name),
            (unit.settings.allowed_memory_nodes & nodes or nodes) if unit.is_active else None,
            is_populated=unit.is_active,
            is_frozen=False,
            unit=unit.settings,
            unit_before=unit.before,
        )

    def granted_to_unit(self, name: str) -> CpuSet:
        """Where its processes run, or will if it starts."""
        return self.units[name].settings.allowed_cpus & self.left_to_host() or self.left_to_host()

    def set_unit(self, name: str, cpus: CpuSet | None, memory_nodes: NumaSet | None) -> None:
        """What systemd does when it is told so."""
        unit = self.units[name]
        now = unit.settings
        unit.before = unit.before or now
        if cpus is not None:
            unit.is_settled = bool(cpus) and (cpus == now.allowed_cpus or not cpus <= (now.allowed_cpus or cpus))
        unit.settings = UnitSettings(
            now.allowed_cpus if cpus is None else cpus,
            now.allowed_memory_nodes if memory_nodes is None else memory_nodes,
        )
        if unit.settings == unit.before:
            self.units[name] = Unit(unit.settings, unit.is_active)

    def effective(self, path: str) -> CpuSet:
        """Where its processes run."""
        return self.granted(path) & self.fallback(path) or self.granted(path)

    def fallback(self, path: str) -> CpuSet:
        """Where the kernel lets its processes run when it cannot let them run anywhere in the container's cgroup."""
        while path and "cpuset" not in self.groups[_parent(path)].enabled:
            path = _parent(path)
        path = path.removesuffix(f"/{PAYLOAD}")
        cpus = self.groups[path].values.get(Attribute.FALLBACK_CPUS, CpuSet())
        assert isinstance(cpus, CpuSet)
        return cpus

    def granted(self, path: str) -> CpuSet:
        """`cpuset.cpus.effective`."""
        if self.has_partitions and path in self.partitions():
            return self.handed_down(path) & self.node.kernel.online
        if not path:
            return self.left_to_host() - self.withheld
        above = self.granted(_parent(path))
        return self.listed(path) & above or above

    def listed(self, path: str) -> CpuSet:
        """`cpuset.cpus`."""
        if path.endswith(f"/{PAYLOAD}"):
            return self.fallback(_parent(path))
        cpus = self.groups[path].values.get(Attribute.CPUSET_CPUS, CpuSet())
        assert isinstance(cpus, CpuSet)
        return cpus

    def left_to_host(self) -> CpuSet:
        """CPUs that are in no partition."""
        cpus = self.node.kernel.online
        for path in self.partitions() if self.has_partitions else ():
            cpus -= self.handed_down(path)
        return cpus

    def shown_settings(self) -> dict[Setting, CpuSet]:
        """The kernel keeps its threads off partitions, and gives one that has nothing left all that is in none."""
        left = self.left_to_host()
        return {
            setting: cpus & left or left if setting.kind is SettingKind.THREAD else cpus
            for setting, cpus in self.settings.items()
        }

    def handed_down(self, path: str) -> CpuSet:
        cpus = self.groups[path].values.get(Attribute.CPUSET_CPUS_EXCLUSIVE, CpuSet())
        assert isinstance(cpus, CpuSet)
        return cpus

    def partitions(self) -> tuple[str, ...]:
        """Paths of the cgroups that are one."""
        granted = (Partition(PartitionKind.ROOT), Partition(PartitionKind.ISOLATED))
        return tuple(p for p, g in self.groups.items() if g.values.get(Attribute.CPUSET_CPUS_PARTITION) in granted)

    def write(self, path: str, attribute: Attribute, value: Value) -> bool:
        """Whether the kernel takes a value."""
        values = self.groups[path].values
        before = dict(values)
        values[attribute] = value
        if self.has_partitions and not self._may_hand_down():
            self.groups[path].values = before
            return False
        if self.has_partitions:
            self._end_partitions()
        return True

    def _may_hand_down(self) -> bool:
        """Whether no two siblings hand down the same CPU, or one all that another may use."""
        handing = {path: self.handed_down(path) for path in self.groups if self.handed_down(path)}
        for path, cpus in handing.items():
            for other, group in self.groups.items():
                if other == path or _parent(other) != _parent(path) or ABOVE in {path, other} or "" in {path, other}:
                    continue
                allowed = group.values.get(Attribute.CPUSET_CPUS, CpuSet())
                assert isinstance(allowed, CpuSet)
                if cpus & self.handed_down(other) or (allowed and allowed <= cpus):
                    return False
        return True

    def _end_partitions(self) -> None:
        """A partition that is not handed its CPUs down to ends."""
        for path in self.partitions():
            above = [ABOVE, "", *(other for other in self.groups if other and path.startswith(f"{other}/"))]
            if not self.handed_down(path) or any(not self.handed_down(path) <= self.handed_down(a) for a in above):
                kind = self.groups[path].values[Attribute.CPUSET_CPUS_PARTITION]
                assert isinstance(kind, Partition)
                self.groups[path].values[Attribute.CPUSET_CPUS_PARTITION] = Partition(
                    kind.kind, "no CPUs are handed down"
                )

    def is_populated(self, path: str) -> bool:
        return any(g.processes for p, g in self.groups.items() if p == path or not path or p.startswith(path + "/"))

    def is_frozen(self, path: str) -> bool:
        while path and not self.groups[path].values.get(Attribute.FREEZE, False):
            path = _parent(path)
        return bool(path)

    def populated(self) -> tuple[str, ...]:
        return tuple(p for p, g in sorted(self.groups.items()) if g.processes)

    # what the agent does to cgroups

    def apply(self, change: Change) -> None:
        key = change.attribute if isinstance(change, SetAttribute) else type(change)
        broken = self.broken.get((change.path, key))
        if broken is not None:
            raise CgroupError(broken, path=change.path, error=None, hint="it is broken on purpose")
        match change:
            case _ if is_pinned(change.path):
                self._tell_systemd(change)
            case MakeCgroup(path, has_payload):
                assert _parent(path) in self.groups, f"no parent for {path}"
                self.groups.setdefault(path, Group()).has_payload |= has_payload
            case EnableControllers(path, controllers):
                available = self._observed_cgroups(path).controllers
                assert available >= set(controllers), f"{path} cannot enable {controllers}"
                self.groups[path].enabled |= set(controllers)
            case GatherThreads(path):
                self.groups[path].elsewhere = CpuSet()
            case SetAttribute(path, Attribute.MEMORY_MAX, ByteLimit(int() as limit)) if self._used(path) > limit:
                raise MemoryInUseError("more is in use", path=path, error=None, hint="wait")
            case SetAttribute(path, attribute, value):
                there = self._observed_cgroups(path)
                assert there.get(attribute) is not None, f"{path} has no {attribute.value}"
                may_be_empty = attribute is Attribute.CPUSET_CPUS_EXCLUSIVE or not isinstance(value, (CpuSet, NumaSet))
                assert may_be_empty or value, "an empty set must never be written"
                assert change.before != value, f"an idle write: {change}"
                if not self.write(path, attribute, value):
                    self.refused.append(change)
                    raise CgroupError("Invalid argument", path=path, error=errno.EINVAL, hint="siblings overlap")
            case RemoveCgroup(path):
                assert not self.is_populated(path), f"{path} has processes"
                assert not any(p.startswith(path + "/") for p in self.groups), f"{path} has children"
                del self.groups[path]
        self.writes.append(change)

    def _used(self, path: str) -> int:
        return sum(used for p, used in self.in_use.items() if p == path or p.startswith(f"{path}/"))

    def _tell_systemd(self, change: Change) -> None:
        name = unit_at(change.path)
        match change:
            case SetAttribute(_, Attribute.CPUSET_CPUS, CpuSet() as cpus):
                assert cpus, "a unit without CPUs would be everywhere"
                assert change.before != cpus, f"an idle write: {change}"
                self.set_unit(name, cpus, None)
            case SetAttribute(_, Attribute.CPUSET_MEMS, NumaSet() as nodes):
                assert change.before != nodes, f"an idle write: {change}"
                self.set_unit(name, None, nodes)
            case GiveUnitBack(_, before):
                assert self.units[name].settings != before, f"an idle write: {change}"
                self.set_unit(name, before.allowed_cpus, before.allowed_memory_nodes)
            case _:
                raise AssertionError(f"{change} isn't the agent's to do")

    # what the agent asks of the launcher

    def act(self, action: Action) -> None:
        match action:
            case Launch():
                self._launch(action)
            case Terminate(run_id):
                self.signals.append(("TERM", run_id))
                frozen = [p for path, g in self.groups.items() if self.is_frozen(path) for p in g.processes]
                self._terminate(p for p in self._of_run(run_id) if p not in frozen)
            case TerminateAll(_, path):
                self.signals.append(("TERM", path))
                self._terminate([p for g in self._thawed() for p in g.processes if g is self.groups[path]])
            case KillCgroup(path):
                self.signals.append(("KILL", path))
                if path in self.groups and not self.groups[path].is_unkillable:
                    for process in tuple(self.groups[path].processes):
                        self._end(process, Exit(self.now_ms, signal=9))
            case KillMain(run_id):
                self.signals.append(("KILL", run_id))
                for process in self._of_run(run_id):
                    self._end(process, Exit(self.now_ms, signal=9))
            case Forget(run_ids):
                for run_id in run_ids:
                    assert self.runs[run_id].exit is not None, f"{run_id} still runs"
                    del self.runs[run_id]

    def _launch(self, action: Launch) -> None:
        assert len(action.run_id) <= 120, "the launcher takes no longer ids"
        if action.run_id in self.runs:  # a start that is asked for again answers with the first one's status
            return
        assert action.run_id not in self.starts, f"{action.run_id} was started before: ids are for ever"
        if action.container.name in self.unstartable:
            ended = Exit(self.now_ms, code=128, start_error="exec: No such file or directory")
            self.runs[action.run_id] = Run(action.run_id, self.now_ms, exit=ended)
            return
        assert not self.is_frozen(action.path), f"a start in the frozen cgroup {action.path} would hang"
        self.starts.append(action.run_id)
        self.runs[action.run_id] = Run(action.run_id, self.now_ms, pid=len(self.starts), start_ticks=1)
        is_stubborn = action.container.name in self.stubborn
        self.groups[action.path].processes.append(Process(action.run_id, is_stubborn))

    def _thawed(self) -> list[Group]:
        return [g for p, g in self.groups.items() if not self.is_frozen(p)]

    def _terminate(self, processes: Iterable[Process]) -> None:
        for process in processes:
            if not process.is_stubborn:
                self._end(process, Exit(self.now_ms, signal=15))

    # what happens by itself

    def _of_run(self, run_id: str) -> list[Process]:
        return [
            p for p in (*self.strays, *(p for g in self.groups.values() for p in g.processes)) if p.run_id == run_id
        ]

    def stray(self, run_id: str) -> None:
        """A container's main process leaves its cgroup for one that isn't ours."""
        (process,) = self._of_run(run_id)
        group = self.groups[self.path_of(run_id)]
        group.processes = [p for p in group.processes if p is not process]
        self.strays.append(process)

    def fetch(self, process: Process, path: str) -> None:
        """A process is moved into a cgroup."""
        self.strays = [p for p in self.strays if p is not process]
        self.groups[path].processes.append(process)

    def _end(self, process: Process, how: Exit) -> None:
        self.strays = [p for p in self.strays if p is not process]
        for group in self.groups.values():
            if process in group.processes:
                group.processes = [p for p in group.processes if p is not process]
        if process.run_id in self.runs:
            self.runs[process.run_id] = replace(self.runs[process.run_id], pid=None, exit=how)

    def path_of(self, run_id: str) -> str:
        return next(p for p, g in self.groups.items() for q in g.processes if q.run_id == run_id)

    def exit(self, run_id: str, code: int | None = 0, *, signal: int | None = None, leaving: int = 0) -> None:
        """A container's main process ends; `leaving` children stay behind in its cgroup."""
        path = self.path_of(run_id)
        process = next(p for p in self.groups[path].processes if p.run_id == run_id)
        self._end(process, Exit(self.now_ms, code=None if signal else code, signal=signal))
        self.groups[path].processes += [Process(None) for _ in range(leaving)]

    def oom_kill(self, run_id: str) -> None:
        path = self.path_of(run_id)
        self.groups[path].oom_kills += 1
        for process in tuple(self.groups[path].processes):
            self._end(process, Exit(self.now_ms, signal=9))

    def enter(self, path: str, *, stubborn: bool = False) -> None:
        """Somebody's process enters a cgroup."""
        self.groups[path].processes.append(Process(None, stubborn))

    def running(self) -> tuple[str, ...]:
        """Ids of the runs that have a process, sorted."""
        return tuple(sorted(r.id for r in self.runs.values() if r.exit is None))

    def running_containers(self) -> tuple[str, ...]:
        """`pod/container` of the runs that have a process, sorted."""
        return tuple(
            sorted("/".join(p.split("/")[-2:]) for p, g in self.groups.items() if any(q.run_id for q in g.processes))
        )

    def run_of(self, container: str) -> str:
        """Id of the running run of a container, told by its path's end."""
        found = [
            q.run_id for p, g in self.groups.items() if p.endswith("/" + container) for q in g.processes if q.run_id
        ]
        assert len(found) == 1, f"{container} has the runs {found}"
        return found[0]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


# The agent's turn without its edges


class Agent:
    """The deciding thread over a model. `crash()` loses all it has in memory; `saved` is what a file would hold."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.saved = encode_state(empty_state(machine.node), policies_of(machine.node.config.placement))
        self.saves = 0
        self.state = empty_state(machine.node)
        self.signalled: frozenset[str] = frozenset()
        self.asked: frozenset[str] = frozenset()
        self.events: list[TurnEvent] = []
        self.turn_events: tuple[TurnEvent, ...] = ()
        self.wanted: tuple[Manifest, ...] = ()
        self.unreadable: frozenset[str] = frozenset()
        self.misspelt: frozenset[str] = frozenset()
        self.is_blind = self.is_partial = False
        """All this of the manifest directory."""
        self.other_sources: tuple[PodSource, ...] = ()
        self.retried: frozenset[str] = frozenset()
        self.released: frozenset[str] = frozenset()
        self.disk_is_full = False
        self.last = Turn(self.state)
        self.seen_room: SeenRoom = {}
        self.resizing: set[str] = set()
        """Containers that were resized, and have not been seen on their new CPUs."""
        self.sharing: set[str] = set()
        """Those of them that had none of their own, and still share what is to be theirs."""
        self.effects = 0
        """How often it touched the world: saves, writes, actions."""
        self.dies_at: int | None = None
        """The effect before which it dies. None: it doesn't."""

    def restart(self) -> None:
        """A new process: it knows what was saved, and nothing else."""
        self.state = decode_state(self.saved).state
        self.signalled = self.asked = frozenset()
        self.seen_room = {}
        self.dies_at = None

    def sources(self) -> tuple[PodSource, ...]:
        directory = PodSource(
            self.wanted, self.unreadable, self.misspelt, is_blind=self.is_blind, is_partial=self.is_partial
        )
        return (directory, *self.other_sources)

    def world(self) -> World:
        machine = self.machine
        return World(
            config=machine.node.config,
            managers=machine.node.managers,
            allocatable=machine.node.allocatable,
            sources=self.sources(),
            runs=dict(machine.runs) if machine.launcher_answers else None,
            observed=self.observed(),
            now_ms=machine.now_ms,
            retried=self.retried,
            released=self.released,
            inactive_units=self.down(),
            asked_to_end=self.asked,
            seen_room=self.seen_room,
            boot_id=machine.boot_id,
        )

    def down(self) -> frozenset[str]:
        """Units that are not active, or that systemd doesn't know."""
        pods = (*self.state.pods_of_units(), *(manifest.pod for manifest in list_manifests(self.sources())))
        units = self.machine.units
        return frozenset(p for p in unit_paths(pods) if unit_at(p) not in units or not units[unit_at(p)].is_active)

    def observed(self) -> dict[str, ObservedCgroup]:
        """All domains."""
        pods = (*self.state.pods_of_units(), *(manifest.pod for manifest in list_manifests(self.sources())))
        return self.machine.observed() | self.machine.observed_units(unit_paths(pods))

    def want(self, *pods: Pod) -> None:
        self.wanted = manifests(*pods)

    def turn(self) -> ExecutionResult:
        """Do one turn as the daemon does: decide, save, write, act."""
        world = self.world()
        self.retried = self.released = frozenset()
        before = self.state
        decided = step(before, world)
        assert step(before, world) == decided, "the same world gives the same decision"
        if decided.state != before:
            self._save(decided.state)
        if self.state is not before or decided.state == before:
            self.seen_room = decided.seen_room
        self._judge_changes(before, decided)
        resized = [event.pod.uid for event in decided.events if event.kind is EventKind.POD_RESIZED]
        of_resized = [entry for entry in self.state.entries if entry.pod.uid in resized]
        self.resizing |= {entry.container_path(c.name) for entry in of_resized for c in entry.pod.containers}
        self.sharing |= {
            entry.container_path(c.name)
            for entry in of_resized
            for c in entry.pod.containers
            if own_set_of(before.promises, entry.pod.uid, c.name) is None
        }
        self.last = decided
        self.turn_events = decided.events if self.state is not before or decided.state == before else ()
        self.events += self.turn_events
        wanted = self.desired_cgroups()
        plan = diff(wanted, world.observed)
        outcome = execute(plan, wanted, _Recording(self))
        ending = list_stopping(self.state.entries)
        self.signalled, self.asked = self.signalled & ending, self.asked & ending
        placed = container_placements(self.machine.node.managers, self.state, cgroups_in_sync(wanted, outcome)).by_key()
        for action in list_actions(self.state, world, outcome.ready, placed, self.signalled):
            self._effect()
            if isinstance(action, Launch):
                told, held = action.placement, self.machine.groups[cpuset_path(action.path)].values
                named = held[Attribute.CPUSET_CPUS]
                assert isinstance(named, CpuSet)
                # Its own that went offline since may still be named.
                assert told.exclusive_cpus | told.shared_cpus == named & self.machine.node.kernel.online
                assert told.memory_nodes == held[Attribute.CPUSET_MEMS]
            if isinstance(action, Terminate | TerminateAll):
                self.asked |= {action.run_id}
                if self.machine.is_deaf:
                    continue
                self.signalled |= {action.run_id}
            self.machine.act(action)
        self.resizing -= {path for path in self.resizing if self._has_what_it_was_promised(path)}
        self.sharing &= self.resizing
        self.check()
        return outcome

    def _has_what_it_was_promised(self, path: str) -> bool:
        want = next((want for want in self.desired_cgroups() if want.path == cpuset_path(path)), None)
        return want is None or path not in self.machine.groups or self.machine.effective(path) == want.cpus()

    def _judge_changes(self, before: NodeState, decided: Turn) -> None:
        """A pod that runs is ended for what its manifest has become only if that fits in its place, and else is as it was (D7)."""
        of = self.machine.node
        wanted = {
            name: manifest.pod
            for name, manifest in find_effective(list_manifests(self.sources()), before.entries)[0].items()
        }
        allocatable = of.allocatable if of.config.check_allocatable else None
        reported = {event.pod.uid for event in decided.events if event.kind is EventKind.CHANGE_REFUSED}
        finished = any(event.kind is EventKind.POD_FINISHED for event in decided.events)
        node = WhatIf.of(of.managers, decided.state.promises, decided.state.holding_pods(), allocatable)
        node = replace(node, moving=decided.state.ending_uids())
        for entry in decided.state.entries:
            old = before.entry(entry.pod.uid)
            if old is None or old.pod != entry.pod or old.deleting_since_ms is not None or not entry.is_active:
                continue
            successor = wanted.get(entry.pod.full_name)
            if entry.deleting_since_ms is not None and not entry.is_released and successor not in {None, entry.pod}:
                assert successor is not None
                fits = isinstance(node.making_way(successor).judge(successor), Admitted)
                assert fits or finished, f"{entry.pod.name} ends for a successor that does not fit"
            change = entry.refused_change
            assert (change is not None and change != old.refused_change) == (entry.pod.uid in reported), (
                "told of each trial"
            )

    def _save(self, state: NodeState) -> None:
        state = replace(state, generation=self.state.generation + 1)
        found = violations(self.machine.node.managers, state)
        assert found == (), found
        content = encode_state(state, policies_of(self.machine.node.config.placement))
        assert decode_state(content).state == state, "what is read back is what was saved"
        if self.disk_is_full:
            return
        self._effect()
        self.saved, self.state = content, state
        self.saves += 1

    def _effect(self) -> None:
        if self.effects == self.dies_at:
            raise CrashError
        self.effects += 1

    def apply(self, change: Change) -> None:
        self._effect()
        self.machine.apply(change)
        self.check()

    def desired_cgroups(self) -> tuple[DesiredCgroup, ...]:
        of = self.machine.node
        kernel = replace(of.kernel, path_to_partitions=path_to_partitions(self.machine.observed()))
        return desired_cgroups(of.config, of.managers, kernel, self.state)

    def plan(self) -> Plan:
        return diff(self.desired_cgroups(), self.observed())

    def actions(self) -> tuple[Action, ...]:
        """What a turn would do to processes now, if every cgroup is ready."""
        wanted = {w.path: w for w in self.desired_cgroups()}
        ready = frozenset(w.path for w in wanted.values() if w.is_leaf and not w.is_starved)
        placed = container_placements(self.machine.node.managers, self.state, wanted).by_key()
        return tuple(list_actions(self.state, self.world(), ready, placed, self.signalled))

    def is_unsettled(self) -> bool:
        world = self.world()
        return world.runs is not None and any(is_unsettled(e, world.runs, world.observed) for e in self.state.entries)

    # what always holds

    def check(self) -> None:
        """Nobody runs where another was promised to be alone, and nobody's CPUs were given away under its feet."""
        machine, state = self.machine, self.state
        desired_by_path = {w.path: w for w in self.desired_cgroups()}
        populated = machine.populated()
        for path in populated:
            want = desired_by_path.get(path)
            assert want is not None, f"processes in {path}, which no pod owns: its CPUs were given back too early"
            if machine.is_frozen(path):
                continue
            cpus = machine.effective(path)
            if want.is_exclusive:
                # Beside those of a mixed one, the shared pool's come and go.
                alone = cpus & want.exclusive_cpus if want.is_mixed else cpus
                is_whole = alone == want.exclusive_cpus or self._is_on_its_way(path, alone, want.exclusive_cpus)
                assert is_whole, f"{path} runs on {cpus}, promised is {want.cpus()}"
            for other in populated:
                foreign = desired_by_path.get(other)
                if other == path or foreign is None or not foreign.is_exclusive:
                    continue
                if other in self.sharing:
                    continue
                alone = foreign.exclusive_cpus
                if other in self.resizing:  # what it doesn't have yet, others are about to leave
                    alone &= machine.effective(other)
                both = cpus & alone
                assert not both, f"{path} may run on {both} of {other}"
                if other.rpartition("/")[0] != path.rpartition("/")[0]:
                    both = machine.fallback(path) & alone
                    assert machine.fallback(path) >= cpus
                    assert not both, f"{path} may fall back on {both} of {other}"
        self._check_units(desired_by_path)
        universe = CpuSet(machine.node.managers.providers.of(CpuResource).manager.universe)
        if default_set(state.promises):
            assert default_set(state.promises) | list_allocated_cpus(state.promises) == universe, "a CPU is lost"

    def _is_on_its_way(self, path: str, cpus: CpuSet, promised: CpuSet) -> bool:
        """Whether a container that was resized has some of its CPUs, and not all yet, or others still that nobody else is on."""
        return path in self.resizing and bool(cpus & promised)

    def _check_units(self, desired_by_path: Mapping[str, DesiredCgroup]) -> None:
        """Units are as pods are, once they have been moved: until then, and once they are given back, they are the host's."""
        machine = self.machine
        placed = {
            path: machine.granted_to_unit(name)
            for path, want in desired_by_path.items()
            if (name := unit_at(path)) in machine.units and is_pinned(path) and machine.units[name].is_placed
            if want.goes_back_to is None
        }
        own = {path: machine.effective(path) for path in machine.populated() if not machine.is_frozen(path)}
        everybody = own | placed
        for path, cpus in everybody.items():
            alone = desired_by_path[path].exclusive_cpus
            if path in self.sharing:
                continue
            if path in self.resizing:
                alone &= cpus
            if path in placed and not machine.units[unit_at(path)].is_settled:
                continue
            if path in placed and not cpus <= desired_by_path[path].cpus():
                continue  # it shared so far, and is granted its own once the others have left
            assert cpus >= alone, f"{path} may run on {cpus}, promised is {alone}"
            for other, theirs in everybody.items():
                both = theirs & alone
                assert other == path or not both, f"{other} may run on {both} of {path}"

    def settle(self, *, turns: int = 200) -> None:
        """Turn until nothing changes any more, letting time pass where only time helps."""
        for _ in range(turns):
            before = self._everything()
            self.turn()
            if self._everything() != before:
                continue
            wake = self.last.wake_at_ms
            if wake is None:
                return
            assert wake > self.machine.now_ms, "it would wake at once, again and again"
            self.machine.now_ms = wake
        raise AssertionError(f"no rest after {turns} turns: {self.actions()}")

    def rest(self, *, turns: int = 50) -> None:
        """Turn until nothing changes any more, in no time."""
        for _ in range(turns):
            before = self._everything()
            self.turn()
            if self._everything() == before:
                return
        raise AssertionError(f"no rest after {turns} turns: {self.actions()}")

    def _everything(self) -> object:
        machine = self.machine
        groups = {p: (tuple(g.values.items()), len(g.processes), g.oom_kills) for p, g in machine.groups.items()}
        units = tuple(unit.settings for unit in machine.units.values())
        return self.state, groups, units, tuple(machine.runs.items()), set(machine.signals), len(machine.writes)

    def event_names(self) -> list[tuple[str, str | None]]:
        """What happened: (event, container or pod's name)."""
        return [(f.kind.value, f.container or f.pod.name) for f in self.events]

    def reported(self, event: EventKind) -> Iterator[TurnEvent]:
        return (f for f in self.events if f.kind is event)


@dataclass
class _Recording:
    """The tree that execute writes to."""

    agent: Agent

    def apply(self, change: Change) -> None:
        self.agent.apply(change)


def started(of: Node, *pods: Pod, units: Mapping[str, Unit] = {}) -> tuple[Machine, Agent]:
    """A node on which these pods were admitted and started as far as they do by themselves."""
    machine = Machine(of)
    machine.units |= units
    agent = Agent(machine)
    agent.want(*pods)
    agent.rest()
    return machine, agent
