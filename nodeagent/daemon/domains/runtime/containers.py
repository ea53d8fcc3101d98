"""The containers of a container runtime in a turn: its calls are decided on and answered, and changes that no call asks for are pushed.
Loaded where it is configured only.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import Change
from nodeagent.core.domains.domain import DomainCounts, DomainInput, DomainView, TakenBack, TurnDone
from nodeagent.core.domains.runtime.answers import Occupant, Response, response
from nodeagent.core.domains.runtime.decisions import take
from nodeagent.core.domains.runtime.instructions import (
    Correct,
    CountFailOpen,
    Happening,
    Looked,
    Populated,
    Refuse,
    Retried,
    Todo,
    Unserved,
)
from nodeagent.core.domains.runtime.occupants import (
    Node,
    Stated,
    occupants,
    own_occupants,
    pool_of,
    promised,
    untracked_occupants,
)
from nodeagent.core.domains.runtime.registry import awaits_end, has_any
from nodeagent.core.domains.runtime.reported import RuntimeReport
from nodeagent.core.domains.runtime.verdict import verdict
from nodeagent.core.metrics.agent_metrics import RUNTIME_ANSWER_DURATION, RUNTIME_LATE, RUNTIME_UNASKED
from nodeagent.core.metrics.deltas import MetricDelta, Series
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroups, unclear_units
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES
from nodeagent.core.model.config import Config
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import Answer, Call, Denial, Event, Sandbox, Synchronized
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.runtime_containers import ContainerKey
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.devices.holdings import DeviceHoldings, HeldDevice
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.runtime.adapters import CONTAINERD, Adapter, adapter_of
from nodeagent.daemon.domains.runtime.exchange import Message, RuntimeExchange
from nodeagent.daemon.domains.runtime.kubelet_pods import PodsApi
from nodeagent.daemon.domains.runtime.runtime_link import RuntimeLink
from nodeagent.daemon.domains.runtime.sight import Sight, look, maybe_running
from nodeagent.daemon.domains.runtime.untracked_cgroups import UntrackedCgroups, log_untracked, look_for_untracked
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.reports.problems import unserved_containers
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.runs import Unprepared
from nodeagent.daemon.turn.wakeups import Wakeups
from nodeagent.edge.cgroups.cgroupfs import CgroupError, CgroupTree
from nodeagent.formats.manifest.pod_rules import misnamed as names_amiss
from nodeagent.formats.runtime.annotations import names_devices, read_annotations

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.core.model.topology import Topology

LOOK_SECONDS = 60.0
"""After which to look whether refused pods are still there: after its own restart containerd 1.7 doesn't tell that they are removed. And
whether there are processes among kubelet's pods that belong to no container.
"""
_CDI_SINCE = (0, 7, 0)


class Misplaced(Struct, frozen=True):
    """A container that began unasked or was moved, until it is seen to be where it belongs."""

    id: str
    key: ContainerKey
    found: CpuSet
    """The CPUs on which it was found."""


class RuntimeMemory(Struct, frozen=True):
    """What is kept between turns."""

    reported: RuntimeReport = RuntimeReport()
    sight: Sight = Sight()
    untracked: UntrackedCgroups = UntrackedCgroups()
    misplaced: tuple[Misplaced, ...] = ()
    unsaved: tuple[Message, ...] = ()
    """Events that could not be saved: they have happened all the same."""
    unasked: int = 0
    """Containers that were found to have begun unasked, since they were counted last."""
    is_waiting: bool = False
    """Something is to change that wakes nobody."""
    link_logged: str = ""
    """What the last log line about the connection said."""
    left: str = ""
    """Pods that keep their promises though nobody serves the runtime, in words. Empty if there are none."""


class OpenTurn(Struct, frozen=True):
    """What the turn under way has decided, and what is left of it to be done."""

    node: Node
    calls: tuple[tuple[Message, tuple[Todo, ...]], ...] = ()
    todo: tuple[Todo, ...] = ()
    """To be logged and counted once it is saved."""


class RuntimeDomain:
    """The runtime's part of a turn, for the deciding thread.

    Args:
        socket: the runtime's.
        tree: for the cgroups.
        wakeups: of the deciding thread.
        log: for what is about no pod.
        devices: looks at the devices of the machine, if a pod asks to be near some.
        pods: kubelet's, which says what the runtime isn't told. None means that kubelet isn't asked.
    """

    def __init__(
        self,
        socket: Path,
        tree: CgroupTree,
        wakeups: Wakeups,
        log: Log,
        devices: "Callable[[Topology], PlacedDevices]",
        pods: PodsApi | None = None,
    ) -> None:
        self._tree, self._log, self._devices, self._pods = tree, log, devices, pods
        self.prepare: Callable[[tuple[HeldDevice, ...]], Unprepared | None] = lambda _: None
        """Lets device plugins prepare the devices of a container that is about to be created. None means that they have."""
        self.exchange = RuntimeExchange(socket, wakeups, log, pods)
        self.link = RuntimeLink(socket, self.exchange, self.exchange.lost)
        self.is_served = True
        """False means that nobody connects to the runtime, so nobody reports whose cgroups these are."""
        self._memory = RuntimeMemory()
        self._open: OpenTurn | None = None
        """None before the first turn."""

    @property
    def name(self) -> str:
        return self._adapter.name

    @property
    def _adapter(self) -> Adapter:
        runtime = self.exchange.state.runtime
        return CONTAINERD if runtime is None else adapter_of(runtime.name)

    def follow(self, config: Config, /) -> None: ...

    def bring(self, *, rescan: bool) -> tuple[PodSource, ...]:  # noqa: ARG002 - its pods come as calls, to be answered: see `decide`
        return ()

    def observe(self, _look: DomainInput, /) -> DomainView:
        return DomainView({}, is_all_told=self.has_told)

    def decide(self, decided: Turn, world: World, /) -> Turn:
        """Decide on what the runtime has told and asked since the last turn."""
        memory, state, kernel = self._memory, decided.state, world.kernel
        assert kernel is not None
        asked = (*memory.unsaved, *self.exchange.take())
        sight = self._look(state, memory.sight, again=True)
        retried = tuple(e.pod.uid for e in state.entries if e.is_of_runtime and e.pod.uid in world.retried)
        if retried and self._pods is not None:
            self._pods.ask_again(retried)
            self.exchange.look_again()
        happenings: list[tuple[Message | None, Happening]] = [
            *((None, what) for what in self._seen_to_end(state, sight)),
            *((None, Retried(uid)) for uid in retried),
            *((one, one.what) for one in asked),
        ]
        if any(_asks_for_devices(what, memory.reported) for _, what in happenings):
            world = replace(world, managers=world.managers.knowing(self._devices(world.managers.topology)))
        origin, mount = self._adapter.origin, str(self._tree.mount)
        node = Node(world, kernel, memory.reported, stated, origin, mount, misnamed)
        opened, draft = OpenTurn(node), Draft(state, decided.events, decided.deltas)
        for one, what in happenings:
            node = replace(node, reported=node.reported.after(what))
            taken = take(draft, what, node)
            draft = taken.draft
            calls = opened.calls if one is None else (*opened.calls, (one, taken.todo))
            opened = OpenTurn(node, calls, opened.todo + taken.todo)
        sight = self._look(draft.state, sight, again=False)
        has_listed = memory.untracked.has_listed or any(isinstance(one.what, Synchronized) for one in asked)
        untracked = replace(memory.untracked, has_listed=has_listed)
        if self.is_served:
            try:
                found = look_for_untracked(untracked, self._tree, draft.state.runtime, time.monotonic(), LOOK_SECONDS)
                untracked = log_untracked(found, self._log)
            except CgroupError as err:
                sight = replace(sight, problem=Problem.from_error(err))
        self._open = opened
        self._memory = replace(
            memory, reported=node.reported, sight=sight, untracked=untracked, unsaved=(), is_waiting=False, left=""
        )
        return replace(decided, state=draft.state, events=draft.events, deltas=draft.deltas)

    def withdraw(self, why: str, /) -> None:
        """Answer those who wait that nothing was decided. What has happened is taken up by the next turn."""
        assert self._open is not None
        for asked, _ in self._open.calls:
            asked.set_answer(Denial(f"nodeagent could not save its decision: {why}; the kubelet tries again"))
        unsaved = tuple(Message(asked.what) for asked, _ in self._open.calls if asked.is_event)
        self._open = OpenTurn(self._open.node)
        self._memory = replace(self._memory, unsaved=unsaved, is_waiting=True)

    def record(self, _state: NodeState, _observed: ObservedCgroups, /) -> tuple[str, ...]:
        return ()

    def desired(self, _observed: ObservedCgroups, /) -> tuple[DesiredCgroup, ...]:
        return ()

    def occupied(self, state: NodeState, /) -> CpuSet:
        """Return the CPUs that the runtime's containers are still to leave."""
        assert self._open is not None
        cpus = CpuSet() if self._memory.sight.problem is None else self._open.node.kernel.online
        for one in self._occupants(state, self._open.node):
            cpus |= one.overdue
        return cpus

    def owns(self, _path: str, /) -> bool:
        """The runtime writes its containers' cgroups, by the answers to its calls and by what is pushed to it."""
        return False

    def apply(self, change: Change, /) -> None:
        raise AssertionError(f"{change.path} is the runtime's to change")

    def take_back(self, _state: NodeState, /) -> TakenBack:
        return TakenBack({})

    def finish(self, done: TurnDone, /) -> tuple[Problem, ...]:
        """Answer the calls of this turn, whose state is saved and whose cgroups are written; have the rest pushed."""
        assert self._open is not None
        state = done.state
        opened, self._open = self._open, OpenTurn(self._open.node)
        node = opened.node
        self._report(opened)
        if self._pods is not None:
            self._pods.known = frozenset(pod.uid for pod in state.runtime.pods)
        theirs = self._occupants(state, node)
        pool = pool_of(state, node)
        own: tuple[Occupant, ...] = ()
        problem = self._memory.sight.problem
        if any(asked.answer is not None for asked, _ in opened.calls) or response(theirs, pool=pool) != Response(
            Answer()
        ):
            try:
                own = own_occupants(done.wanted, self._tree.read(OWN_DIRECTORIES), state)
            except CgroupError as err:
                problem = Problem.from_error(err)
        if problem is not None:
            for asked, _ in opened.calls:
                asked.set_answer(Denial(f"nodeagent can't read cgroups: {problem}; the kubelet tries again"))
            self._memory = replace(self._memory, is_waiting=True)
            return (problem,)
        self._report_placed(theirs)
        others = (
            (Occupant("a unit or pod that could not be made to leave", done.unvacated, None),) if done.unvacated else ()
        )
        there = (*own, *theirs, *others)
        answered = self._answer_calls(opened, there, done)
        is_waiting, left = False, ""
        if state.runtime.refused and time.monotonic() >= self.exchange.state.looked_at + LOOK_SECONDS:
            self.exchange.look_again()
        if self.is_served:
            due = response(there, pool=pool)
            # Changes that an answer carries come with it, and are looked at again.
            is_under_way = self.exchange.push(() if answered else due.answer.updates)
            waits = any(one.cpus for one in due.waiting)
            is_waiting = answered or waits or is_under_way or awaits_end(state.runtime)
        elif any(one.is_held for one in state.runtime.entries):
            left = unserved_containers(state)
        reported = self._memory.reported.known_to(state.runtime)
        self._memory = replace(self._memory, reported=reported, is_waiting=is_waiting, left=left)
        return ()

    @property
    def is_unsettled(self) -> bool:
        """Whether something is to change that wakes nobody."""
        return self._memory.is_waiting

    @property
    def has_told(self) -> bool:
        """Whether it is known, and saved, which containers there are; where nobody connects, nobody tells it."""
        is_saved = not any(isinstance(one.what, Synchronized) for one in self._memory.unsaved)
        return (self._memory.untracked.has_listed and is_saved) or not self.is_served

    def standing_problem(self) -> str | None:
        """Return why the runtime isn't served. None means that it is, or that it was not tried yet. Logs each change."""
        link, memory = self.exchange.state, self._memory
        if link.lost_why and link.lost_why != memory.link_logged:
            self._log.warning("runtime_lost", problem=link.lost_why)
            self._memory = replace(memory, link_logged=link.lost_why)
        elif link.is_linked and memory.link_logged != "linked":
            assert link.runtime is not None
            version = ".".join(map(str, link.runtime.nri_version))
            self._log.info("runtime_linked", runtime=link.runtime.name, version=link.runtime.version, nri=version)
            self._memory = replace(memory, link_logged="linked")
        is_unreached = bool(link.push_problem) and not link.lost_why
        unreached = f"changes don't reach the runtime: {link.push_problem}" if is_unreached else ""
        unasked = "" if self._pods is None else self._pods.problem
        untracked = memory.untracked.problem if memory.untracked.has_listed or link.lost_why else ""
        return "; ".join(filter(None, (link.lost_why, unreached, memory.left, unasked, untracked))) or None

    def count(self) -> DomainCounts:
        counts, unasked = self.exchange.take_counts(), self._memory.unasked
        self._memory = replace(self._memory, unasked=0)
        return DomainCounts(
            (MetricDelta(Series(RUNTIME_UNASKED), unasked), MetricDelta(Series(RUNTIME_LATE), counts.late)),
            tuple((RUNTIME_ANSWER_DURATION, seconds) for seconds in counts.answers_seconds),
        )

    def _answer_calls(self, opened: OpenTurn, there: tuple[Occupant, ...], done: TurnDone) -> bool:
        """Answer each call that waits. Returns whether an answer carries changes of other containers."""
        state, node, answered = done.state, opened.node, False
        pool = pool_of(state, node)
        pinned = tuple(
            Occupant(f"unit {unit}, which a pod has pinned that is not known now", cpus, None)
            for unit, cpus in unclear_units(node.world.observed).items()
        )
        for asked, todo in opened.calls:
            if asked.answer is None:
                continue
            if isinstance(asked.what, Call):
                reserved = node.world.managers.reserved & node.kernel.online
                around = (*there, *pinned) if asked.what.event is Event.START_CONTAINER else there
                seen = self._memory.sight.seen
                found = verdict(asked.what, todo, promised(state, node), around, seen, pool, reserved)
                found = self._with_devices(found, asked.what, done)
            else:
                found = response(there, pool=pool)
            if isinstance(found, Response):
                self.exchange.note_sent(found.answer.updates)
                answered |= bool(found.answer.updates)
            elif not any(isinstance(one, Refuse) for one in todo):
                self._log.warning("container_denied", problem=found.reason)
            asked.set_answer(found)
        return answered

    def _seen_to_end(self, state: NodeState, sight: Sight) -> tuple[Happening, ...]:
        """Return the event that the cgroups were looked at, if something is given back once they are empty."""
        if sight.problem is not None:
            return ()
        if not self.is_served and has_any(state.runtime):
            return (Unserved(maybe_running(self._tree, state.runtime, sight)),)
        return (Populated(sight.populated),) if awaits_end(state.runtime) else ()

    def _look(self, state: NodeState, before: Sight, *, again: bool) -> Sight:
        sight = look(self._tree, state.runtime, before, again=again)
        if sight.problem is None:
            known = {made.id for entry in state.runtime.entries for made in entry.made}
            self.exchange.note_seen(known, {id_: there.cpus_effective for id_, there in sight.seen.items()})
        return sight

    def _occupants(self, state: NodeState, node: Node) -> tuple[Occupant, ...]:
        sent = {one.container_id: one.cpus for one in self.exchange.state.sent}
        theirs = occupants(state, node, self._memory.sight.seen, sent)
        return (*theirs, *untracked_occupants(self._memory.untracked.found))

    def _with_devices(self, found: Response | Denial, call: Call, done: TurnDone) -> Response | Denial:
        """Add what a container that is created needs for devices of its own."""
        if call.event is not Event.CREATE_CONTAINER or call.container is None or isinstance(found, Denial):
            return found
        key = ContainerKey.of(call.sandbox, call.container)
        held = done.state.promises.of_pod(key.pod_uid)
        if not (devices := held.of(DeviceHoldings).devices_of(key.name)):
            return found
        from nodeagent.daemon.domains.runtime.device_access import access_of  # noqa: PLC0415 - few containers have any

        runtime = self.exchange.state.runtime
        assert runtime is not None
        answers = next((own for name, own in held.of(DeviceHoldings).answers if name == key.name), ())
        takes_cdi = runtime.nri_version >= _CDI_SINCE
        access = access_of(devices, answers, call.container.variables, takes_cdi=takes_cdi)
        taken = (
            ()
            if isinstance(access, str)
            else tuple(file.path for file in access.files if file.path in done.files_in_use)
        )
        if taken:
            access = f"{done.files_in_use[taken[0]]} may still use {taken[0]}: see `nodeagent inspect`"
        unprepared = Unprepared(access) if isinstance(access, str) else self.prepare(devices)
        if unprepared is not None:
            return Denial(f"container {key.name}: {unprepared.why}; the kubelet tries again")
        assert not isinstance(access, str)
        return replace(found, answer=replace(found.answer, access=access))

    def _report(self, opened: OpenTurn) -> None:
        """Log and count what was decided, and remember which containers are misplaced."""
        misplaced = {one.id: one for one in self._memory.misplaced}
        reserved, unasked = opened.node.world.managers.reserved, self._memory.unasked
        for one in opened.todo:
            match one:
                case CountFailOpen(key, id_):
                    unasked += 1
                    self._log.warning(
                        "container_began_unasked", pod_uid=key.pod_uid, container=key.name, container_id=id_
                    )
                    if (cpus := self._memory.sight.cpus_of(id_)) is not None:
                        misplaced.setdefault(id_, Misplaced(id_, key, cpus))
                case Correct(key, id_, wanted):
                    cpus = self._memory.sight.cpus_of(id_)
                    # One that is where it was created has only to get the pool.
                    if cpus is not None and not cpus <= wanted.exclusive_cpus | reserved:
                        misplaced.setdefault(id_, Misplaced(id_, key, cpus))
                case Refuse(key, id_, reason, is_first=True):
                    about = {"pod_uid": key.pod_uid, "container": key.name, "container_id": id_}
                    self._log.warning("container_denied", **about, problem=reason)
                case _:
                    pass
        self._memory = replace(self._memory, unasked=unasked, misplaced=tuple(misplaced.values()))

    def _report_placed(self, there: tuple[Occupant, ...]) -> None:
        """Log which misplaced containers have come to where they belong, as seen in their cgroups."""
        occupant_by_id = {one.id: one for one in there}
        left = []
        for one in self._memory.misplaced:
            occupant, cpus = occupant_by_id.get(one.id), self._memory.sight.cpus_of(one.id)
            if occupant is not None and (occupant.wanted is None or cpus != occupant.wanted.cpus):
                left.append(one)
            elif occupant is not None and cpus != one.found:
                about = {"pod_uid": one.key.pod_uid, "container": one.key.name, "container_id": one.id}
                self._log.warning("container_put_right", **about, found=str(one.found), restored=str(cpus))
        self._memory = replace(self._memory, misplaced=tuple(left))


def _asks_for_devices(what: Happening, reported: RuntimeReport) -> bool:
    """Return whether a pod may be decided on now that asks to be near devices, or for some of its own."""
    match what:
        case Call():
            return names_devices(what.sandbox)
        case Synchronized():
            return any(map(names_devices, what.sandboxes))
        case Looked():
            return any(map(names_devices, what.found.sandboxes))
        case Retried():
            return any(names_devices(one) for one in reported.sandboxes.values() if one.uid == what.pod_uid)
        case _:
            return False


def stated(sandbox: Sandbox) -> Stated:
    """Read what a pod's annotations say."""
    found = read_annotations(sandbox)
    return Stated(found.stated, tuple(map(str, found.findings)))


def misnamed(pod: Pod) -> tuple[str, ...]:
    """Return what is wrong with a pod's names, for people."""
    return tuple(f"{one.value} {one.allowed}".strip() for one in names_amiss(pod))
