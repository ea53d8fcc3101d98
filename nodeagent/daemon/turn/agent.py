"""The agent: one thread that wakes up, observes, decides, saves, writes, starts and stops, and reports.

Every turn is the same, whether it is the first after a start or caused by a timer or an event.
"""

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers, shortfalls
from nodeagent.core.admission.node_setup import NodeSetup
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.cgroups.ancestor_cpusets import withheld
from nodeagent.core.cgroups.container_placement import ContainerPlacement, container_placements
from nodeagent.core.cgroups.desired_cgroups import CONTROLLERS, Kernel, desired_cgroups
from nodeagent.core.cgroups.partitions import running_without
from nodeagent.core.cgroups.write_order import Plan, diff
from nodeagent.core.host.irq_owners import interrupt_requests
from nodeagent.core.metrics.agent_metrics import MOVED
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups, UnitSettings, unclear_units
from nodeagent.core.model.cgroup_layout import UNITS_LEFT, UNITS_UNCLEAR, is_of_systemd, unit_at
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.refusals import RELEASED, StartRefused
from nodeagent.core.model.state import NodeState, latest_ms, moved, with_endings
from nodeagent.core.model.violations import Shortfall
from nodeagent.core.resources.cpu.holdings import exclusive_cpus
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.resources.devices.holdings import taken_devices
from nodeagent.core.turn.actions import (
    Action,
    Forget,
    KillCgroup,
    KillMain,
    Launch,
    Terminate,
    TerminateAll,
    actions,
    stopping,
)
from nodeagent.core.turn.lifecycle import Run, is_unsettled
from nodeagent.core.turn.pod_sources import PodSource, asking_for_devices, is_unclear, offered
from nodeagent.core.turn.step import EventKind, Turn, World, step
from nodeagent.daemon.domains.all_cgroups import Domains, Systemd, unit_paths
from nodeagent.daemon.domains.systemd.unit_records import UNIT_DEVICES, UnitRecords
from nodeagent.daemon.host.host_settings import HostSettings, Wanted, alone_of
from nodeagent.daemon.reports.logs import Log, about, log_event
from nodeagent.daemon.reports.metrics_recorder import MetricsRecorder, Stopwatch
from nodeagent.daemon.reports.problems import (
    lost_pods_problem,
    misnamed_pods,
    refused_change,
    refused_containers,
    refused_partitions,
    shadow,
    units_of_unknown_pods,
    units_without_cpus,
    unserved_interrupts,
    waiting_units,
    withheld_problem,
)
from nodeagent.daemon.start.recovery import Recovery, recovery_document, report_refused
from nodeagent.daemon.start.reloading import check_takeover, promises_on
from nodeagent.daemon.start.startup import begin_turn
from nodeagent.daemon.turn.claim_statuses import ClaimStatuses
from nodeagent.daemon.turn.clock import Clock
from nodeagent.daemon.turn.drift import as_desired, corrected, gathered
from nodeagent.daemon.turn.execution import ExecutionResult, answered, carry_out, not_begun, not_left
from nodeagent.daemon.turn.kept import POLL_SECONDS, Kept
from nodeagent.daemon.turn.machine import Machine, on_what_is_there
from nodeagent.daemon.turn.placements import Placements
from nodeagent.daemon.turn.reattach import reattach
from nodeagent.daemon.turn.records import Recorder, held_off
from nodeagent.daemon.turn.requests import Requests, TurnRequest
from nodeagent.daemon.turn.runs import Runner
from nodeagent.daemon.turn.troubles import Trouble, attempted, owner_of, trouble_of
from nodeagent.daemon.turn.wakeups import READ_MACHINE, READ_SOURCES, WakeUpReason, Wakeups
from nodeagent.edge.cgroups.cgroupfs import CgroupError, CgroupTree
from nodeagent.edge.files.state_files import StateFileError
from nodeagent.formats.kernel.sysfs_sample import SysfsError
from nodeagent.formats.node_view import NodeView

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.core.model.topology import Topology
    from nodeagent.core.resources.devices.pools import DevicePool
    from nodeagent.daemon.domains.systemd.unit_devices import UnitDevices

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_RETRY_SECONDS = 1.0
_LONGEST_POLL_SECONDS = 1.0
_WITHHELD = "withheld"
_ASTRAY = "astray"
_DEVICES = "devices"
_PARTITIONS = "partitions"
_PLUGINS = "plugins"
_RECORD = "record"
_RUNTIME = "runtime"
_UNITS = "units"
_LOST = "lost pods"
_UNCLEAR = "units whose pods are not known"
_DECISIONS = frozenset({EventKind.POD_ADMITTED, EventKind.POD_RESIZED, EventKind.POD_REFUSED, EventKind.CHANGE_REFUSED})


class SourceReader(Protocol):
    """A source of pods. It wakes the deciding thread itself when there is something new."""

    def look(self, *, rescan: bool) -> PodSource:
        """Return what the source has; with `rescan` as it is now, otherwise as of the last look."""
        ...

    def follow(self, config: Config) -> None:
        """Apply another configuration."""
        ...


class LetIn(Protocol):
    """Lets processes that others started into cgroups that are ready for them."""

    def __call__(
        self, state: NodeState, ready: Collection[str], placed: Mapping[str, ContainerPlacement], tree: CgroupTree, /
    ) -> None: ...


class ContainerRuntime(Protocol):
    """A container runtime's part of a turn."""

    @property
    def is_unsettled(self) -> bool: ...
    @property
    def has_told(self) -> bool: ...
    def problem(self) -> str | None: ...
    def decide(
        self, decided: Turn, world: World, kernel: Kernel, devices: "Callable[[Topology], PlacedDevices]", /
    ) -> Turn: ...
    def not_saved(self, why: Trouble, /) -> None: ...
    def occupied(self, state: NodeState, /) -> CpuSet: ...
    def answer(
        self, state: NodeState, wanted: tuple[DesiredCgroup, ...], not_left: CpuSet, of_units: Mapping[str, str], /
    ) -> tuple[Trouble, ...]: ...
    def count(self, metrics: MetricsRecorder, /) -> None: ...


class DevicePluginsTold(Protocol):
    """What device plugins have told."""

    def pools(self) -> "tuple[DevicePool, ...]": ...
    def problems(self) -> tuple[str, ...]: ...
    def begin_turn(self, alive: Callable[[], None], /) -> None: ...


class _NoRuntime:
    """Nobody asks for anything."""

    is_unsettled = False
    has_told = True

    def problem(self) -> None:
        return None

    def decide(
        self, decided: Turn, _world: World, _kernel: Kernel, _devices: "Callable[[Topology], PlacedDevices]", /
    ) -> Turn:
        return decided

    def not_saved(self, why: Trouble, /) -> None: ...

    def occupied(self, _state: NodeState, /) -> CpuSet:
        return CpuSet()

    def answer(
        self,
        _state: NodeState,
        _wanted: tuple[DesiredCgroup, ...],
        _not_left: CpuSet,
        _of_units: Mapping[str, str],
        /,
    ) -> tuple[Trouble, ...]:
        return ()

    def count(self, metrics: MetricsRecorder, /) -> None: ...


NO_RUNTIME = _NoRuntime()


class Agent:
    """The deciding thread's object; other threads use only `wakeups`, the requests and the last `view`."""

    def __init__(
        self,
        node: NodeSetup,
        state: NodeState,
        *,
        tree: CgroupTree,
        runner: Runner,
        sources: Sequence[SourceReader],
        recorder: Recorder,
        placements: Placements,
        host_settings: HostSettings,
        log: Log,
        wakeups: Wakeups,
        machine: Machine,
        recovery: Recovery | None = None,
        systemd: Systemd | None = None,
        alive: Callable[[], None] = lambda: None,
        let_in: LetIn = lambda _state, _ready, _placed, _tree: None,
        runtime: ContainerRuntime = NO_RUNTIME,
        plugins: DevicePluginsTold | None = None,
    ) -> None:
        self.node = node
        self.state = state
        self.tree = tree
        self._unit_records = UnitRecords(node.config)
        self._claim_statuses = ClaimStatuses(node.config)
        self._unit_devices: UnitDevices | None = None
        """None: no unit has had devices of its own."""
        self._domains = Domains(tree, systemd, recorded=self._unit_records.look)
        self._left: frozenset[str] = frozenset()
        """Paths of units to give back that no pod stands for."""
        self._unclear: frozenset[str] = frozenset()
        """Paths of units of which that isn't known now."""
        self.runner = runner
        self.sources = sources
        self.recorder = recorder
        recorder.begin(node, state.promises)
        self.placements = placements
        self.host_settings = host_settings
        self.log = log
        self.wakeups = wakeups
        self.recovery = recovery
        self._alive = alive
        """Called after each part of a turn: a file, a decision, a write, an action."""
        self._let_in = let_in
        self._runtime = runtime
        self.has_reconciled = False
        """A turn has been done from its beginning to its end, if only without being saved."""
        self.signalled: frozenset[str] = frozenset()
        """Run ids of containers that are being stopped and whose processes got their SIGTERM."""
        self.asked: frozenset[str] = frozenset()
        """Those, and the ones to whose processes it could not be sent: that is tried again, but puts off no SIGKILL."""
        self.requests = Requests()
        self.metrics = MetricsRecorder(node, state.promises)
        self.view = NodeView(node, state, str(tree.root), is_live=True)
        """What others see: one immutable value per turn, replaced as a whole."""
        self._machine = machine
        self._plugins = plugins
        self._given: frozenset[str] = frozenset()
        """Resources of device plugins that have something to give, as of the last look."""
        self._devices: PlacedDevices | None = None
        """As looked at last, where pods may ask for some by number. None: not yet."""
        self._clock = Clock(latest_ms(state))
        self._kept = Kept(node.managers, node.topology, is_saved=recovery is None)
        self.notices: dict[str, str] = {}
        """Other current problems, by subject; set by others on the deciding thread."""

    @property
    def unit_directories(self) -> tuple[str, ...]:
        """Cgroups of the units that pods stand for, where they are or will be."""
        return tuple(str(self.tree.mount / cgroup) for cgroup in self._domains.unit_cgroups.values())

    def change_node(self, node: NodeSetup) -> None:
        """Apply another configuration.

        Raises:
            StartError: it doesn't fit the promises made, or changes a field that needs a restart. Nothing has changed then.
        """
        check_takeover(self.node, self.state, node)
        self.node = node
        for source in self.sources:
            source.follow(node.config)

    def retry(self, uid: str) -> None:
        """Have the next turn decide again on a refused pod; nobody waits for that."""
        self.requests.put(TurnRequest(retried=frozenset({uid})))
        self.wakeups.wake(WakeUpReason.REQUEST)

    def turn(self, reasons: frozenset[WakeUpReason]) -> float:
        """Do one turn.

        Returns:
            Seconds after which to look again even if nothing wakes the agent.
        """
        began = time.monotonic()
        self._follow_machine(rescan=bool(reasons & READ_MACHINE))
        troubles = [*self._kept.machine_trouble]
        sources = tuple(source.look(rescan=bool(reasons & READ_SOURCES)) for source in self.sources)
        self._report_problems(sources)
        looked = self.runner.look()
        runs = None if isinstance(looked, Trouble) else looked
        observed = self._read(runs, sources, rescan=bool(reasons & READ_MACHINE))
        troubles += [found for found in (looked, observed) if isinstance(found, Trouble)]
        requests, retried = self._requested()
        if isinstance(observed, Trouble):
            pause = self._report(None, runs, troubles, began, _RETRY_SECONDS)
            self.requests.answer(self.view, {entry.pod.uid: observed for entry in self.state.entries})
            return pause
        now_ms = self._follow_clock()
        world = World(
            config=self.node.config,
            managers=self._managers(sources, retried, rescan=bool(reasons & READ_MACHINE)),
            allocatable=self.node.allocatable,
            sources=sources,
            runs=runs,
            observed=observed,
            now_ms=now_ms,
            retried=retried,
            released=frozenset().union(*(request.released for request in requests)),
            down=self._domains.down,
            is_all_told=self._runtime.has_told and not self._unclear,
            asked=self.asked,
        )
        watch = Stopwatch(alive=self._alive)
        decided = step(self._on_this_machine(), world, watch.decide)
        decided = self._runtime.decide(decided, world, self._kernel(world), self._machine.devices)
        unsaved = self._save(decided)
        self._kept = replace(self._kept, save_failed=unsaved is not None)
        if unsaved is not None:
            troubles.append(unsaved)
            self._runtime.not_saved(unsaved)
            decided, watch = self._without_saving(decided), Stopwatch()
        unknown = [
            Trouble(one.problem, owner_of(self.state, one.path))
            for one in self._domains.unknown
            if one.path not in self._left | self._unclear
        ]
        undone = self._undone(world, decided, unsaved)
        wanted = self._wanted(world)
        outcome, orphans, disturbing = self._write(world, wanted, rescan=bool(reasons & READ_MACHINE))
        # In this order: what a unit gives back is taken from it before a container is created with it.
        troubles += self._allow_devices(rescan=bool(reasons & READ_MACHINE))
        troubles += self._runtime.answer(self.state, wanted, not_left(outcome), self._files_of_units())
        settled = as_desired(wanted, outcome)
        placed = container_placements(self.node.managers, self.state, settled)
        troubles += [
            *unknown,
            *(Trouble(f"pod {pod.full_name} waits: {why}", about(pod)) for pod, why in decided.postponed),
            *self._kept.answer.troubles,
            *orphans,
            *self._tell(placed, rescan=bool(reasons & READ_MACHINE)),
            *disturbing,
            *self._act(world, outcome, placed),
        ]
        self._let_in(self._with_held_off(), outcome.ready, placed, self.tree)
        self._log_events(decided, outcome, began)
        gathered(world, outcome, self.state, self.log)
        drift = corrected(outcome, self._kept.settled, self.state, self.log)
        if reasons & {WakeUpReason.START, WakeUpReason.CGROUPS, WakeUpReason.TIMER}:
            drift += self._reattach(world, outcome)
        self.metrics.count(decided, outcome, drift, watch.took_ms)
        troubles += self.recorder.project(self.node, self.state.promises, self._pools())
        self._kept = replace(self._kept, settled=settled)
        unsettled = self._is_unsettled(world) or self.host_settings.is_settling
        patient = {
            *self._kept.answer.troubles,
            *(disturbing if self.host_settings.waits else ()),
            *(() if self._domains.unanswered else unknown),
        }
        pause = self._pause(decided, world, retries=bool(set(troubles) - patient), unsettled=unsettled)
        polled = min(_LONGEST_POLL_SECONDS, self._kept.poll_seconds * 1.5) if unsettled else POLL_SECONDS
        self._kept = replace(self._kept, poll_seconds=polled)
        pause = self._report(decided, runs, troubles, began, pause)
        self.requests.answer(self.view, undone)
        return pause

    def _follow_runtime(self) -> None:
        self._runtime.count(self.metrics)
        self.notices.pop(_RUNTIME, None)
        if (problem := self._runtime.problem()) is not None:
            self.notices[_RUNTIME] = problem

    def _report_problems(self, sources: tuple[PodSource, ...]) -> None:
        """Log problems with manifests, each once while it lasts."""
        problems = tuple(problem for source in sources for problem in source.problems)
        reported = frozenset(self._kept.source_problems)
        new = (problem for problem in problems if problem not in reported)
        for source, group in groupby(new, key=lambda problem: problem.source):
            self.log.warning("manifest_refused", source=source, problems=[problem.text for problem in group])
        self._kept = replace(self._kept, source_problems=problems)

    def _follow_machine(self, *, rescan: bool) -> None:
        """Notice CPUs, memory or huge pages that have come or gone, and CPUs that were withheld from the pods or returned to them.

        No reason to wake tells of CPUs that are withheld: without a rescan too, they are looked at before anything is decided.
        """
        try:
            chain = self.tree.chain() or self._kept.chain
            if chain == self._kept.chain and not rescan and not self._kept.machine_trouble:
                return
            self._kept = replace(self._kept, whole=self._machine.look(self._kept.whole), chain=chain)
            kept = withheld(chain)
        except (SysfsError, CgroupError) as err:
            self._kept = replace(self._kept, machine_trouble=(trouble_of(err),))
            return
        self.notices.pop(_WITHHELD, None)
        if kept.cpus:
            self.notices[_WITHHELD] = withheld_problem(kept)
        topology = self._kept.whole.without(kept.cpus)
        before = self.node.topology
        if topology == before and not self._kept.machine_trouble:
            return
        node, refusals = on_what_is_there(self.node, topology)
        judged = None if refusals else promises_on(node, self.state.promises)
        if isinstance(judged, StartRefused):
            node, refusals = replace(self.node, topology=topology), (judged,)
        self.node = node
        self._kept = replace(self._kept, machine_trouble=())
        if refusals:
            why = "; ".join(refused.text for refused in refusals)
            trouble = f"the machine has changed, and pods cannot be placed on it as it is: {why}"
            way_out = (
                "bring back what is missing, or drain the node and correct what `nodeagent config validate` reports"
            )
            self._kept = replace(self._kept, machine_trouble=(Trouble(f"{trouble} ({way_out})"),))
        if topology != before:
            self.log.warning(
                "machine_changed",
                online=str(topology.online),
                gone=str(before.online - topology.online),
                came=str(topology.online - before.online),
                memory_bytes=topology.memory_bytes,
            )

    def _follow_clock(self) -> int:
        """Return the time. The times that the state remembers are shifted as the clock was set."""
        now_ms, set_by_ms = self._clock.read()
        if set_by_ms:
            self.log.warning("clock_stepped", by_ms=set_by_ms)
            self.state = moved(self.state, set_by_ms)
            self._kept = replace(self._kept, is_saved=False)
        return now_ms

    def _plugged(self) -> "tuple[DevicePool, ...]":
        return () if self._plugins is None else self._plugins.pools()

    def _pools(self) -> "tuple[DevicePool, ...]":
        """Return the devices that pods may ask for by number."""
        return self._knowing().pools

    def _requested(self) -> tuple[tuple[TurnRequest, ...], frozenset[str]]:
        """Return what was asked for, and the pods to decide on again: those that somebody named, and those that wait for a plugin.

        The latter are a request, too. So they stay noted until a turn has decided on them and has saved that.
        """
        given = frozenset(pool.resource for pool in self._plugged() if pool.healthy)
        new, self._given = given - self._given, given
        if new:
            self.requests.put(TurnRequest(retried=self._waiting(new)))
        requests = tuple(self.requests.take())
        return requests, frozenset[str]().union(*(request.retried for request in requests))

    def _waiting(self, resources: frozenset[str]) -> frozenset[str]:
        """Return the refused pods that ask for resources of device plugins. A plugin may have registered after they came."""
        return frozenset(
            entry.pod.uid
            for entry in self.state.entries
            if entry.refusal is not None
            and entry.refusal.reason != RELEASED
            and not entry.is_of_runtime
            and any(name in resources for container in entry.pod.containers for name, _ in container.devices)
        )

    def _managers(self, sources: tuple[PodSource, ...], retried: frozenset[str], *, rescan: bool) -> Managers:
        """Return those that decide in this turn, with what they need to know. Plugins have their time from now on."""
        managers = self.node.managers
        begin_turn(self.node, self._alive)
        if self._plugins is not None:
            self._plugins.begin_turn(self._alive)
        plugged = self._plugged()
        gives = bool(self.node.config.placement.devices)
        asks = asking_for_devices(offered(sources), self.state.entries, retried, gives=gives)
        if not gives:
            near = self._machine.devices(self.node.topology) if asks else None
            return managers.knowing(near, plugged) if asks or plugged else managers
        if asks or rescan or self._devices is None:
            self._devices = self._machine.devices(self.node.topology)
        return managers.knowing(self._devices, plugged)

    def _knowing(self) -> Managers:
        """Return the node's managers with the devices that it gives, as they were looked at last."""
        managers, plugged = self.node.managers, self._plugged()
        return managers.knowing(self._devices, plugged) if managers.placement.devices or plugged else managers

    def _on_this_machine(self) -> NodeState:
        """Return the state adapted to the machine as it is now. It stays a proposal until a turn has saved it."""
        if self._kept.settled_on is self.node.managers:
            return self.state
        promises = promises_on(self.node, self.state.promises)
        assert not isinstance(promises, StartRefused), "it was judged when the machine was taken over"
        return replace(self.state, promises=promises)

    def _read(
        self, runs: Mapping[str, Run] | None, sources: Iterable[PodSource], *, rescan: bool
    ) -> ObservedCgroups | Trouble:
        """Return the pods' cgroups, or why they can't be written. systemd creates its units' cgroups itself, and nobody else may (D9)."""
        pods = (*self.state.pods_of_units(), *(manifest.pod for manifest in offered(tuple(sources))))
        units = self._units_without_pod(tuple(sources))
        # Whether a pod stands for them is not known while a manifest can't be read.
        is_unclear = any(s.is_blind or s.is_partial or s.unreadable or s.misspelt for s in sources)
        self._left = frozenset() if is_unclear else frozenset(f"{UNITS_LEFT}/{unit}" for unit in units)
        self._unclear = frozenset(f"{UNITS_UNCLEAR}/{unit}" for unit in units) if is_unclear else frozenset()
        try:
            observed = self._domains.read(unit_paths(pods) | self._left | self._unclear, rescan=rescan)
        except CgroupError as err:
            return trouble_of(err)
        if self.node.config.cgroup_root:
            return observed
        root = observed.get("")
        # Between creating it and starting the launcher, systemd puts the unit's first process there: no controllers then.
        if root is not None and (runs is not None or root.subtree_control >= CONTROLLERS):
            return observed
        how = "is not there" if root is None else "is new"
        way_out = "systemctl start nodeagent-pods nodeagent-launcher"
        return Trouble(f"the pods' unit is not ready: {self.tree.root} {how} ({way_out})")

    def _units_without_pod(self, sources: tuple[PodSource, ...]) -> tuple[str, ...]:
        """Return the units that an earlier state's pods stood for, and that nobody will stand for: the state was lost, and what was pinned
        has no manifest, or is refused.
        """
        known = {entry.pod.uid for entry in self.state.entries}
        coming = (manifest.pod for manifest in offered(sources) if manifest.pod.uid not in known)
        standing = {unit for pod in (*self.state.pods_of_units(), *coming) for unit in pod.units}
        return tuple(sorted(self._unit_records.look().keys() - standing))

    def _record_units(self, observed: ObservedCgroups) -> tuple[Trouble, ...]:
        """Record what units go back to, before they are told anything; and forget it once they have that."""
        wanted = {
            container.unit: status.unit_before
            for entry in self.state.entries
            if entry.is_of_systemd
            for container, status in entry.pairs()
            if status.unit_before is not None
        }
        for unit, before in self._unit_records.look().items():
            path = f"{UNITS_LEFT}/{unit}"
            there = observed.get(path)
            is_over = not self._domains.unanswered if there is None else there.unit == before
            is_over = is_over if path in self._left else _has_gone_back(unit, before, observed)
            if unit not in wanted and not is_over:
                wanted[unit] = before
        return self._unit_records.keep(wanted)

    def _tell(self, placed: Mapping[str, ContainerPlacement], *, rescan: bool) -> tuple[Trouble, ...]:
        """Write what containers and the users of claims are told; returns what could not be."""
        untold = self.placements.keep(self.state, placed, rescan=rescan, alive=self._alive)
        return untold + self._claim_statuses.keep(self.state, rescan=rescan, alive=self._alive)

    def _allow_devices(self, *, rescan: bool) -> tuple[Trouble, ...]:
        """Have systemd's units be allowed the devices that are their own; returns what could not be done."""
        if self._unit_devices is None:
            has_some = bool(taken_devices(self.state.promises) and self.state.pods_of_units())
            if not has_some and not Path(self.node.config.runtime_directory, UNIT_DEVICES).exists():
                return ()
            from nodeagent.daemon.domains.systemd.unit_devices import UnitDevices  # noqa: PLC0415 - few units have any

            self._unit_devices = UnitDevices(self.node.config)
        return self._unit_devices.keep(self.state, rescan=rescan, unclear=frozenset(map(unit_at, self._unclear)))

    def _files_of_units(self) -> Mapping[str, str]:
        """Return the device files that could not be taken from a unit, each with its unit."""
        return {} if self._unit_devices is None else self._unit_devices.overdue

    def _save(self, decided: Turn) -> Trouble | None:
        """Make the decision durable before acting on it. A decision that can't be saved has not happened: return the reason."""
        if decided.state == self.state and self._kept.is_saved:
            self._kept = replace(self._kept, settled_on=self.node.managers, held_off=())
            return None
        state = replace(decided.state, generation=self.state.generation + 1)
        broken = tuple(violation.text for violation in violations(self.node.managers, state))
        assert not broken, f"a decision breaks a promise: {broken}"
        try:
            self.recorder.save(self.node, state)
        except StateFileError as err:
            self.metrics.count_failed_save(err.errno)
            self._hold_off(state, err)
            # Retry even if there is nothing left to decide: that shows whether the problem is over.
            self._kept = replace(self._kept, is_saved=False)
            return trouble_of(err)
        before, self.state = self.state, state
        self._note_returned(before)
        self._kept = replace(self._kept, settled_on=self.node.managers, is_saved=True, held_off=())
        return None

    def _note_returned(self, before: NodeState) -> None:
        """Log what CPU plugins have to say about CPUs that have been given back, and are so on disk."""
        plugins = self.node.managers.providers.of(CpuResource).manager.plugins
        if not plugins or before.promises.pods == self.state.promises.pods:
            return
        from nodeagent.core.resources.cpu.plugins import notes_on  # noqa: PLC0415 - only where there are plugins

        names = {entry.pod.uid: entry.pod.full_name for entry in before.entries}
        for note in notes_on(plugins, self.node.topology, before.promises, self.state.promises):
            # The pod's name is known: whoever held CPUs had an entry.
            log = self.log.warning if note.has_failed else self.log.info
            whose = {"pod": names[note.pod_uid], "pod_uid": note.pod_uid, "container": note.container}
            log("cpus_returned", plugin=note.plugin, **whose, note=note.text)

    def _follow_plugins(self) -> None:
        self.notices.pop(_PLUGINS, None)
        plugins = self.node.managers.providers.of(CpuResource).manager.plugins
        if plugins:
            from nodeagent.core.resources.cpu.plugins import held_off as late  # noqa: PLC0415 - only where there are plugins

            self.notices |= {_PLUGINS: problem} if (problem := late(plugins)) else {}

    def _without_saving(self, decided: Turn) -> Turn:
        """Do what may be done without saving it: end the pods that must end, which may free space. Nothing is allocated or released."""
        self.state = with_endings(self.state, decided.state)
        return Turn(self.state, tuple(event for event in decided.events if event.kind is EventKind.POD_ENDING))

    def _hold_off(self, decided: NodeState, err: StateFileError) -> None:
        """Refuse what can't be made durable (E22). The refusal isn't part of the state: it ends with the problem."""
        before = {entry.pod.uid for entry in self._kept.held_off}
        self._kept = replace(self._kept, held_off=held_off(self.state, decided, err))
        for entry in self._kept.held_off:
            if entry.pod.uid not in before and entry.refusal is not None:
                self.metrics.count_refusal(entry.refusal.reason)
                report_refused(entry, self.log)

    def _undone(self, world: World, decided: Turn, unsaved: Trouble | None) -> dict[str, str]:
        """Give the pods that are not decided again although somebody asked for it, and why."""
        again = {event.pod.uid for event in decided.events if event.kind in _DECISIONS}
        return {
            entry.pod.uid: unsaved or f"manifest {entry.origin.name} cannot be read or is invalid"
            for entry in self.state.entries
            if entry.pod.uid in world.retried - again
            and (entry.refusal or entry.change_refusal)
            and entry.deleting_since_ms is None
            and (unsaved or is_unclear(entry, world.sources))
        }

    def _kernel(self, world: World) -> Kernel:
        return Kernel.of(self.node.topology, _PAGE_BYTES, world.observed)

    def _wanted(self, world: World) -> tuple[DesiredCgroup, ...]:
        """Compute what every cgroup should hold. Without a launcher nothing can be started, and no cgroup is created for it: the pods' unit
        may be stopping; systemd could not remove its cgroup, nor start the unit in what is left of it (D9).
        """
        wanted = desired_cgroups(self.node.config, self.node.managers, self._kernel(world), self.state)
        wanted += tuple(
            DesiredCgroup(path, is_leaf=True, goes_back_to=there.unit_before)
            for path, there in sorted(world.observed.items())
            if path.startswith(f"{UNITS_LEFT}/") and there.unit_before is not None
        )
        self.notices.pop(_UNITS, None)
        if homeless := units_without_cpus(wanted):
            self.notices[_UNITS] = homeless
        self.notices.pop(_LOST, None)
        if lost := lost_pods_problem(self.state.promises.unrecovered):
            self.notices[_LOST] = lost
        self.notices.pop(_UNCLEAR, None)
        if unclear := unclear_units(world.observed):
            self.notices[_UNCLEAR] = units_of_unknown_pods(unclear)
        return wanted if world.runs is not None else tuple(want for want in wanted if want.path in world.observed)

    def _write(
        self, world: World, wanted: tuple[DesiredCgroup, ...], *, rescan: bool
    ) -> tuple[ExecutionResult, tuple[Trouble, ...], tuple[Trouble, ...]]:
        """Return what was written, where orphaned processes run and what could not be recorded, and what could not be kept off exclusive
        CPUs.

        The host's work leaves before CPUs are granted: a partition changes the CPUs of kernel threads, too. If it then turns out that one
        is refused, or is no longer, that is made up for.
        """
        refused = self._kept.refused_partitions
        if refused is None:
            refused = running_without(wanted, world.observed)
        recorded = self._record_units(world.observed)
        disturbing = self._keep_host_away(wanted, refused, rescan=rescan)
        plan: Plan = diff(wanted, world.observed)
        plan = replace(plan, occupied=plan.occupied | self._runtime.occupied(self.state))
        outcome = carry_out(plan, wanted, self._domains, self._alive)
        self._kept = replace(
            self._kept,
            answer=answered(outcome, self._kept.answer, partial(owner_of, self.state)),
            refused_partitions=not_begun(outcome),
        )
        if not_begun(outcome) != refused:
            disturbing = self._keep_host_away(wanted, not_begun(outcome), rescan=False)
        orphans = (
            Trouble(
                f"processes run in {self.tree.root / path}, which no pod owns, on CPUs {world.observed[path].cpus_effective} "
                f"(end them: echo 1 > {self.tree.root / path}/cgroup.kill)"
            )
            for path in plan.orphans
        )
        return outcome, (*orphans, *recorded), disturbing

    def _keep_host_away(
        self, wanted: tuple[DesiredCgroup, ...], refused: CpuSet, *, rescan: bool
    ) -> tuple[Trouble, ...]:
        """Move the host's work off exclusive CPUs.

        Where a partition is refused, systemd keeps its units off, as it does where the kernel has none.
        """
        self._alive()
        exclusive = exclusive_cpus(self.state.promises)
        partitioned = CpuSet()
        for want in wanted:
            partitioned |= want.partition_cpus()
        alone = alone_of(self.node.config, self.node.topology, exclusive, partitioned - refused)
        asked = interrupt_requests(self.state)
        host = self._kept.whole.online - exclusive
        settings = Wanted(alone, host, asked, partitioned - refused, self._pinned(wanted))
        troubles = self.host_settings.keep(settings, rescan=rescan)
        if self.host_settings.lost_record is not None:
            self.notices[_RECORD] = self.host_settings.lost_record
        self.notices.pop(_PARTITIONS, None)
        if refused:
            self.notices[_PARTITIONS] = refused_partitions(refused)
        self.notices.pop(_DEVICES, None)
        if self.node.config.interrupt_isolation != "none":
            without_effect = unserved_interrupts(asked, self.host_settings.claimed)
            self.notices |= {_DEVICES: without_effect} if without_effect else {}
        return troubles

    def _pinned(self, wanted: tuple[DesiredCgroup, ...]) -> dict[str, CpuSet]:
        """Return the exclusive CPUs of systemd's units, by where their cgroups are."""
        places = self._domains.unit_cgroups
        return {
            places[unit_at(want.path)]: want.exclusive_cpus
            for want in wanted
            if is_of_systemd(want.path) and want.is_exclusive and unit_at(want.path) in places
        }

    def _act(
        self, world: World, outcome: ExecutionResult, placed: Mapping[str, ContainerPlacement]
    ) -> tuple[Trouble, ...]:
        ending = stopping(self.state)
        self.signalled, self.asked = self.signalled & ending, self.asked & ending
        done = [self._do(action) for action in actions(self.state, world, outcome.ready, placed, self.signalled)]
        return tuple(trouble for trouble in done if trouble is not None)

    def _do(self, action: Action) -> Trouble | None:
        self._alive()
        match action:
            case Launch():
                return self.runner.launch(action, self.node.config, str(self.tree.root))
            case Terminate(run_id):
                return self._note_asked(run_id, self.runner.terminate(run_id))
            case TerminateAll(run_id, path):
                return self._note_asked(
                    run_id, attempted(partial(self.tree.terminate, path), owner_of(self.state, path))
                )
            case KillCgroup(path):
                return attempted(partial(self.tree.kill, path), owner_of(self.state, path))
            case KillMain(run_id):
                return self.runner.kill(run_id)
            case Forget(run_ids):
                return self.runner.forget(run_ids)

    def _note_asked(self, run_id: str, trouble: Trouble | None) -> Trouble | None:
        self.asked |= {run_id}
        self.signalled |= {run_id} if trouble is None else frozenset()
        return trouble

    def _reattach(self, world: World, outcome: ExecutionResult) -> tuple[str, ...]:
        """Move processes back into their containers. Returns what was moved, for the metric."""
        back, troubles = reattach(self.state, world.runs or {}, outcome.ready, self.tree, self.log)
        self.notices.pop(_ASTRAY, None)
        if troubles:
            self.notices[_ASTRAY] = "; ".join(troubles)
        return (MOVED,) * back

    def _log_events(self, decided: Turn, outcome: ExecutionResult, began: float) -> None:
        took = {"writes": len(outcome.written), "duration_ms": round((time.monotonic() - began) * 1000)}
        shadows = []
        reported = frozenset(self._kept.shadows)
        for event in decided.events:
            if event.kind is not EventKind.MANIFEST_SHADOWED:
                log_event(self.log, event, self.state, took)
                continue
            shadows.append(shadow(event))
            if shadows[-1] not in reported:
                log_event(self.log, event, self.state, {})
        self._kept = replace(self._kept, shadows=tuple(shadows))

    def _pause(self, decided: Turn, world: World, *, retries: bool, unsettled: bool) -> float:
        """Compute how long nothing can change by itself."""
        pauses = [self.node.config.rescan_period_ms / 1000]
        if decided.wake_at_ms is not None:
            pauses.append(max(0.0, (decided.wake_at_ms - world.now_ms) / 1000))
        if self._kept.answer.pause_seconds is not None:
            pauses.append(self._kept.answer.pause_seconds)
        if retries:
            pauses.append(_RETRY_SECONDS)
        if unsettled:
            pauses.append(self._kept.poll_seconds)
        return min(pauses)

    def _is_unsettled(self, world: World) -> bool:
        """Whether something is to change that wakes nobody."""
        runs = world.runs
        if self._runtime.is_unsettled:
            return True
        return runs is not None and any(is_unsettled(entry, runs, world.observed) for entry in self.state.entries)

    def _report(
        self,
        decided: Turn | None,
        runs: Mapping[str, Run] | None,
        troubles: list[Trouble],
        began: float,
        pause: float,
    ) -> float:
        """Publish what readers see, and log each problem once while it lasts, however many pods it affects."""
        self._follow_runtime()
        self._follow_plugins()
        troubles = list(dict.fromkeys(troubles))
        for trouble in troubles:
            if trouble not in self._kept.troubles:
                self.log.error("trouble", **trouble.about, problem=str(trouble))
        for trouble in sorted(self._kept.troubles - set(troubles)):
            self.log.info("trouble_over", **trouble.about, problem=str(trouble))
        self._kept = replace(self._kept, troubles=frozenset(troubles))
        self._report_shortfalls()
        is_whole = decided is not None and runs is not None
        self.has_reconciled |= is_whole
        # An invalid manifest was logged when it was found: it is not a problem of the agent itself.
        changes = ((entry.origin.name, refused_change(entry)) for entry in self.state.entries)
        manifests = [
            *((p.source, p.text) for p in self._kept.source_problems),
            *self._kept.shadows,
            *((source, text) for source, text in changes if text is not None),
        ]
        problems = (
            *self.notices.values(),
            *(() if self._plugins is None else self._plugins.problems()),
            *map(str, troubles),
            *(short.text for short in self._kept.shortfalls),
            *refused_containers(self.state),
            *waiting_units(self.state),
            *misnamed_pods(self.state),
            *(f"manifest {source}: {text}" for source, text in manifests),
        )
        running = None if runs is None else {r.id: r.pid for r in runs.values() if r.exit is None and r.pid is not None}
        self.view = NodeView(
            node=self.node,
            state=self._with_held_off(),
            cgroup_root=str(self.tree.root),
            unit_cgroups=self._domains.unit_cgroups,
            pids=running,
            problems=problems,
            recovery=None if self.recovery is None else recovery_document(self.recovery, self.recorder.set_aside),
            is_live=True,
            is_ready=is_whole and not self._kept.save_failed,
            pools=self._pools(),
        )
        self.metrics.publish(
            self.view,
            decided_something=decided is not None and bool(decided.events),
            manifest_problems=len({source for source, _ in manifests}),
            seconds=time.monotonic() - began,
        )
        return pause

    def _with_held_off(self) -> NodeState:
        return replace(self.state, entries=(*self.state.entries, *self._kept.held_off))

    def _report_shortfalls(self) -> None:
        """Log each promise that the machine can't keep once, and again when it can."""
        found = {short: self._about(short) for short in shortfalls(self._knowing(), self.state.promises)}
        for short, fields in found.items():
            if short not in self._kept.shortfalls:
                self.log.warning("promise_short", **fields, problem=short.text)
        for short, before in self._kept.shortfalls.items():
            if short not in found:
                self.log.info("promise_kept_again", **before, problem=short.text)
        self._kept = replace(self._kept, shortfalls=found)

    def _about(self, short: Shortfall) -> dict[str, str]:
        uid, container = short.holder or ("", None)
        entry = self.state.entry(uid)
        return {} if entry is None else about(entry.pod, container)


def _has_gone_back(unit: str, before: UnitSettings, observed: ObservedCgroups) -> bool:
    """Whether the pod that a unit was pinned for, and that has ended in this turn, has left it what it had before."""
    return any(
        there.unit == before
        for path, there in observed.items()
        if is_of_systemd(path) and unit_at(path) == unit and not path.startswith(f"{UNITS_UNCLEAR}/")
    )
