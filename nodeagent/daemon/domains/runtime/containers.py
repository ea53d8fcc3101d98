"""Container runtime domain: decides on the runtime's calls and answers them, and pushes the changes that the runtime didn't ask for."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.domains.domain import DomainCounts, DomainInput, DomainView, TurnDone
from nodeagent.core.domains.runtime.answers import Occupant, Response, build_response
from nodeagent.core.domains.runtime.call_answer import answer_call
from nodeagent.core.domains.runtime.decisions import decide_event, find_due
from nodeagent.core.domains.runtime.instructions import (
    Correct,
    CountFailOpen,
    Happening,
    Looked,
    Populated,
    Refuse,
    Retried,
    RoomMade,
    Todo,
    Unserved,
)
from nodeagent.core.domains.runtime.occupants import (
    Node,
    Stated,
    find_shared_pool,
    list_occupants,
    list_own_occupants,
    list_untracked_occupants,
    wanted_by_key,
)
from nodeagent.core.domains.runtime.registry import awaits_end, has_any
from nodeagent.core.domains.runtime.reported import RuntimeReport
from nodeagent.core.metrics.agent_metrics import RUNTIME_ANSWER_DURATION, RUNTIME_LATE, RUNTIME_UNASKED
from nodeagent.core.metrics.deltas import MetricDelta, Series
from nodeagent.core.model.cgroup import unclear_units
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import Answer, Call, Denial, Event, Sandbox, Synchronized
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.runtime_containers import ContainerKey
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.turn.draft import Draft
from nodeagent.core.turn.world import Turn, World
from nodeagent.daemon.domains.passive_domain import PassiveDomain
from nodeagent.daemon.domains.runtime.adapters import CONTAINERD, Adapter, find_adapter
from nodeagent.daemon.domains.runtime.container_cgroups import ContainerCgroups, maybe_running, read_container_cgroups
from nodeagent.daemon.domains.runtime.exchange import Message, RuntimeExchange
from nodeagent.daemon.domains.runtime.kubelet_pods import PodsApi
from nodeagent.daemon.domains.runtime.runtime_link import RuntimeLink
from nodeagent.daemon.domains.runtime.untracked_cgroups import UntrackedCgroups, log_untracked, look_for_untracked
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.reports.problems import describe_unserved_containers
from nodeagent.daemon.turn.problem import Problem
from nodeagent.daemon.turn.runs import Unprepared
from nodeagent.daemon.turn.wakeups import Wakeups
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.formats.manifest.pod_rules import find_invalid_names as names_amiss
from nodeagent.formats.runtime.annotations import names_devices, read_annotations

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.core.model.topology import Topology

LOOK_SECONDS = 60.0
"""Seconds between two searches for pods that the runtime has removed after a refusal, and for processes below kubepods that are in no known
container.

The searches are needed because containerd 1.7, after its own restart, doesn't report removed pods.
"""
_CDI_SINCE = (0, 7, 0)


class Misplaced(Struct, frozen=True):
    """Container whose cgroup has the wrong CPUs, because it was started without the agent's decision (fail-open) or because another program
    changed the cgroup. The record is kept until the cgroup has the right CPUs.
    """

    id: str
    key: ContainerKey
    cpus: CpuSet
    """Effective CPUs of the cgroup when the agent found the container misplaced."""


class RuntimeMemory(Struct, frozen=True):
    """State that the runtime domain keeps between turns."""

    reported: RuntimeReport = RuntimeReport()
    cgroups: ContainerCgroups = ContainerCgroups()
    untracked: UntrackedCgroups = UntrackedCgroups()
    misplaced: tuple[Misplaced, ...] = ()
    unsaved: tuple[Message, ...] = ()
    """Events of a turn that could not be saved. The next turn decides on them again."""
    postponed: tuple[Message, ...] = ()
    """Messages on which the agent can decide only after device plugins have answered."""
    unprepared: "tuple[tuple[Message, tuple[Todo, ...]], ...]" = ()
    """Calls that are decided, but can only be answered after device plugins have prepared the devices."""
    fail_open_starts: int = 0
    """Number of containers that started fail-open (without the agent's decision) and are not yet in the metrics."""
    is_waiting: bool = False
    """Whether the domain waits for a change that no event reports, so that another turn must follow soon."""
    link_logged: str = ""
    """Connection state that was logged last: the reason for a lost connection, or "linked"."""
    unserved: str = ""
    """Description of the pods that keep their allocations although the agent doesn't serve the runtime. Empty means that there are none."""


class PendingDecisions(Struct, frozen=True):
    """Decisions of the current turn whose calls aren't answered yet, and which aren't logged and counted yet."""

    node: Node
    calls: tuple[tuple[Message, tuple[Todo, ...]], ...] = ()
    todo: tuple[Todo, ...] = ()
    """Instructions that the decisions have produced. They are logged and counted after the turn is saved."""


class RuntimeDomain(PassiveDomain):
    """Container runtime domain. The deciding thread calls its methods. The runtime itself writes the containers' cgroups.

    Args:
        socket: path of the runtime's NRI socket.
        tree: the node's cgroups.
        wakeups: reasons to wake the deciding thread.
        log: the log.
        devices: function that returns the machine's devices, for pods with a `near` annotation.
        pods: client that asks kubelet about pods. None means that kubelet isn't asked.
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
        """Function that has the device plugins prepare a container's devices before the container is created.

        The result is None if the devices are ready, or else the reason why they aren't.
        """
        self.exchange = RuntimeExchange(socket, wakeups, log, pods)
        self.link = RuntimeLink(socket, self.exchange, self.exchange.record_lost)
        self.is_served = True
        """Whether the agent connects to the runtime. Otherwise, the agent learns nothing about the runtime's containers."""
        self._memory = RuntimeMemory()
        self._pending: PendingDecisions | None = None
        """Decisions of the current turn, until they are answered. None means that there has been no turn yet."""

    @property
    def name(self) -> str:
        return self._adapter.name

    @property
    def _adapter(self) -> Adapter:
        runtime = self.exchange.state.runtime
        return CONTAINERD if runtime is None else find_adapter(runtime.name)

    def observe(self, _look: DomainInput, /) -> DomainView:
        return DomainView({}, has_reported_all=self.has_listed)

    def decide(self, decided: Turn, world: World, /) -> Turn:
        """Decide on the calls and events that the runtime has sent since the last turn."""
        memory, state, kernel = self._memory, decided.state, world.kernel
        assert kernel is not None
        asked = (*memory.unsaved, *memory.postponed, *self.exchange.take())
        cgroups = self._read_cgroups(state, memory.cgroups, again=True)
        retried = tuple(e.pod.uid for e in state.entries if e.is_requested_per_container and e.pod.uid in world.retried)
        if retried and self._pods is not None:
            self._pods.ask_again(retried)
            self.exchange.look_again()
        happenings: list[tuple[Message | None, Happening]] = []
        if cgroups.problem is None and not self.is_served and has_any(state.runtime):
            happenings.append((None, Unserved(maybe_running(self._tree, state.runtime, cgroups))))
        elif cgroups.problem is None and awaits_end(state.runtime):
            happenings.append((None, Populated(cgroups.populated)))
        happenings += [(None, Retried(uid)) for uid in retried]
        draft = Draft(state, decided.events, decided.deltas, seen_room=decided.seen_room)
        if find_due(draft, world):
            happenings.append((None, RoomMade()))
        happenings += [(message, message.content) for message in asked]
        if any(_may_ask_for_devices(what, memory.reported) for _, what in happenings):
            world = replace(world, managers=world.managers.knowing(self._devices(world.managers.topology)))
        origin, mount = self._adapter.origin, str(self._tree.mount)
        node = Node(world, kernel, memory.reported, read_pod_annotations, origin, mount, find_name_problems)
        pending, postponed = PendingDecisions(node, memory.unprepared), list[Message]()
        for message, what in happenings:
            informed = replace(node, reported=node.reported.after(what))
            taken = decide_event(draft, what, informed)
            is_undecided = any(isinstance(one, Refuse) and one.is_undecided for one in taken.todo)
            if is_undecided and message is not None and time.monotonic() < message.plugins_until:
                postponed.append(message)
                continue
            if taken.is_illegal:
                self.exchange.look_again()
            else:
                node = informed
            draft = taken.draft
            calls = pending.calls if message is None else (*pending.calls, (message, taken.todo))
            pending = PendingDecisions(node, calls, pending.todo + taken.todo)
        cgroups = self._read_cgroups(draft.state, cgroups, again=False)
        has_listed = memory.untracked.has_listed or any(
            isinstance(message.content, Synchronized) and message not in postponed for message in asked
        )
        untracked = replace(memory.untracked, has_listed=has_listed)
        if self.is_served:
            try:
                found = look_for_untracked(untracked, self._tree, draft.state.runtime, time.monotonic(), LOOK_SECONDS)
                untracked = log_untracked(found, self._log)
            except CgroupError as err:
                cgroups = replace(cgroups, problem=Problem.from_error(err))
        self._pending = pending
        self._memory = replace(
            memory,
            reported=node.reported,
            cgroups=cgroups,
            untracked=untracked,
            unsaved=(),
            postponed=tuple(postponed),
            unprepared=(),
            is_waiting=False,
            unserved="",
        )
        return replace(decided, state=draft.state, events=draft.events, deltas=draft.deltas, seen_room=draft.seen_room)

    def withdraw(self, why: str, /) -> None:
        """Deny the waiting calls, because the turn couldn't be saved (`why`). Keep the events for the next turn."""
        assert self._pending is not None
        for asked, _ in self._pending.calls:
            asked.set_answer(Denial(f"nodeagent could not save its decision: {why}; the kubelet tries again"))
        unsaved = tuple(Message(asked.content) for asked, _ in self._pending.calls if asked.is_event)
        self._pending = PendingDecisions(self._pending.node)
        self._memory = replace(self._memory, unsaved=unsaved, is_waiting=True)

    def occupied(self, state: NodeState, /) -> CpuSet:
        """Return the CPUs that containers may still use after losing their allocation. If a container's cgroup is unreadable, return all
        online CPUs.
        """
        assert self._pending is not None
        cpus = CpuSet() if self._memory.cgroups.problem is None else self._pending.node.kernel.online
        for occupant in self._occupants(state, self._pending.node):
            cpus |= occupant.overdue
        return cpus

    def finish(self, done: TurnDone, /) -> tuple[Problem, ...]:
        """Answer the calls of a turn that was saved, and push the changes for which there is no call to answer."""
        assert self._pending is not None
        state = done.state
        pending, self._pending = self._pending, PendingDecisions(self._pending.node)
        node = pending.node
        self._log_decisions(pending)
        if self._pods is not None:
            self._pods.known = frozenset(pod.uid for pod in state.runtime.pods)
        runtime_occupants = self._occupants(state, node)
        pool = find_shared_pool(state, node)
        own: tuple[Occupant, ...] = ()
        problem = self._memory.cgroups.problem
        if any(asked.answer is not None for asked, _ in pending.calls) or build_response(
            runtime_occupants, pool=pool
        ) != Response(Answer()):
            try:
                own = list_own_occupants(done.wanted, self._tree.read(OWN_DIRECTORIES), state)
            except CgroupError as err:
                problem = Problem.from_error(err)
        if problem is not None:
            for asked, _ in pending.calls:
                asked.set_answer(Denial(f"nodeagent can't read cgroups: {problem}; the kubelet tries again"))
            self._memory = replace(self._memory, is_waiting=True)
            return (problem,)
        self._log_corrected(runtime_occupants)
        unvacated = (
            (Occupant("a unit or pod that could not be made to leave", done.unvacated, None),) if done.unvacated else ()
        )
        all_occupants = (*own, *runtime_occupants, *unvacated)
        answered = self._answer_calls(pending, all_occupants, done)
        is_waiting, unserved = False, ""
        if state.runtime.refused and time.monotonic() >= self.exchange.state.looked_at + LOOK_SECONDS:
            self.exchange.look_again()
        if self.is_served:
            due = build_response(all_occupants, pool=pool)
            # Updates in an answer change other containers, so the agent needs another turn soon.
            is_under_way = self.exchange.push(() if answered else due.answer.updates)
            waits = any(update.cpus for update in due.waiting)
            is_waiting = answered or waits or is_under_way or awaits_end(state.runtime)
            is_waiting = is_waiting or bool(self._memory.postponed or self._memory.unprepared)
        elif any(entry.is_held for entry in state.runtime.entries):
            unserved = describe_unserved_containers(state)
        reported = self._memory.reported.known_to(state.runtime)
        self._memory = replace(self._memory, reported=reported, is_waiting=is_waiting, unserved=unserved)
        return ()

    @property
    def needs_every_turn(self) -> bool:
        # no turn may be skipped, because a turn also handles the runtime's calls, which aren't among the inputs that are compared
        return self.is_served

    @property
    def is_unsettled(self) -> bool:
        return self._memory.is_waiting

    @property
    def has_listed(self) -> bool:
        """Return whether the agent knows, and has saved, all of the runtime's containers. The result is also true if the agent doesn't
        serve the runtime.
        """
        is_saved = not any(isinstance(message.content, Synchronized) for message in self._memory.unsaved)
        return (self._memory.untracked.has_listed and is_saved) or not self.is_served

    def standing_problem(self) -> str | None:
        """Return the current problems of the connection to the runtime and kubelet, as one text. Log a lost or new connection once.

        None means that there is no problem, or that the agent hasn't tried to connect yet.
        """
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
        kubelet_problem = "" if self._pods is None else self._pods.problem
        untracked = memory.untracked.problem if memory.untracked.has_listed or link.lost_why else ""
        return "; ".join(filter(None, (link.lost_why, unreached, memory.unserved, kubelet_problem, untracked))) or None

    def count(self) -> DomainCounts:
        counts, fail_open = self.exchange.take_counts(), self._memory.fail_open_starts
        self._memory = replace(self._memory, fail_open_starts=0)
        return DomainCounts(
            (MetricDelta(Series(RUNTIME_UNASKED), fail_open), MetricDelta(Series(RUNTIME_LATE), counts.late)),
            tuple((RUNTIME_ANSWER_DURATION, seconds) for seconds in counts.answers_seconds),
        )

    def _answer_calls(self, pending: PendingDecisions, all_occupants: tuple[Occupant, ...], done: TurnDone) -> bool:
        """Answer each waiting call, except for calls that must wait for device plugins. Return whether any answer also updates other
        containers.
        """
        state, node, answered = done.state, pending.node, False
        unprepared: list[tuple[Message, tuple[Todo, ...]]] = []
        pool = find_shared_pool(state, node)
        pinned = tuple(
            Occupant(f"unit {unit}, pinned by a pod that is unknown at the moment", cpus, None)
            for unit, cpus in unclear_units(node.world.observed).items()
        )
        for asked, todo in pending.calls:
            if asked.answer is None:
                continue
            if isinstance(asked.content, Call):
                reserved = node.world.managers.reserved & node.kernel.online
                around = (*all_occupants, *pinned) if asked.content.event is Event.START_CONTAINER else all_occupants
                seen = self._memory.cgroups.by_id
                answer = answer_call(asked.content, todo, wanted_by_key(state, node), around, seen, pool, reserved)
                found = self._add_devices(answer, asked.content, done, asked.plugins_until)
            else:
                found = build_response(all_occupants, pool=pool)
            if found is None:
                unprepared.append((asked, todo))
                continue
            if isinstance(found, Response):
                self.exchange.note_sent(found.answer.updates)
                answered |= bool(found.answer.updates)
            elif not any(isinstance(instruction, Refuse) for instruction in todo):
                self._log.warning("container_denied", problem=found.reason)
            asked.set_answer(found)
        self._memory = replace(self._memory, unprepared=tuple(unprepared))
        return answered

    def _read_cgroups(self, state: NodeState, before: ContainerCgroups, *, again: bool) -> ContainerCgroups:
        cgroups = read_container_cgroups(self._tree, state.runtime, before, again=again)
        if cgroups.problem is None:
            known = {made.id for entry in state.runtime.entries for made in entry.made}
            self.exchange.forget_made(known, {id_: cgroup.cpus_effective for id_, cgroup in cgroups.by_id.items()})
        return cgroups

    def _occupants(self, state: NodeState, node: Node) -> tuple[Occupant, ...]:
        sent = {change.container_id: change.cpus for change in self.exchange.state.sent}
        runtime_occupants = list_occupants(state, node, self._memory.cgroups.by_id, sent)
        return (*runtime_occupants, *list_untracked_occupants(self._memory.untracked.found))

    def _add_devices(
        self, found: Response | Denial, call: Call, done: TurnDone, plugins_until: float
    ) -> Response | Denial | None:
        """Add device access to the answer to CreateContainer, or deny the call if a device can't be used now. None means that a device
        plugin hasn't answered yet.
        """
        if call.event is not Event.CREATE_CONTAINER or call.container is None or isinstance(found, Denial):
            return found
        key = ContainerKey.of(call.sandbox, call.container)
        held = done.state.promises.of_pod(key.pod_uid)
        if not (devices := held.of(DeviceHoldings).devices_of(key.name)):
            return found
        from nodeagent.daemon.domains.runtime.device_access import find_device_access  # noqa: PLC0415 - few containers have any

        runtime = self.exchange.state.runtime
        assert runtime is not None
        answers = next((own for name, own in held.of(DeviceHoldings).answers if name == key.name), ())
        takes_cdi = runtime.nri_version >= _CDI_SINCE
        access = find_device_access(devices, answers, call.container.variables, takes_cdi=takes_cdi)
        if not isinstance(access, str):
            in_use = next((file.path for file in access.files if file.path in done.files_in_use), None)
            if in_use is not None:
                access = f"{done.files_in_use[in_use]} may still use {in_use}: see `nodeagent inspect`"
            elif (unprepared := self.prepare(devices)) is not None:
                if unprepared.is_postponed and time.monotonic() < plugins_until:
                    return None
                access = unprepared.why
            else:
                return replace(found, answer=replace(found.answer, access=access))
        return Denial(f"container {key.name}: {access}; the kubelet tries again")

    def _log_decisions(self, pending: PendingDecisions) -> None:
        """Log and count the turn's decisions, and remember the misplaced containers."""
        misplaced = {container.id: container for container in self._memory.misplaced}
        reserved, fail_open = pending.node.world.managers.reserved, self._memory.fail_open_starts
        for instruction in pending.todo:
            match instruction:
                case CountFailOpen(key, id_):
                    fail_open += 1
                    self._log.warning(
                        "container_began_unasked", pod_uid=key.pod_uid, container=key.name, container_id=id_
                    )
                    if (cpus := self._memory.cgroups.cpus_of(id_)) is not None:
                        misplaced.setdefault(id_, Misplaced(id_, key, cpus))
                case Correct(key, id_, wanted):
                    cpus = self._memory.cgroups.cpus_of(id_)
                    # A container on the CPUs that it got at creation isn't misplaced. It only lacks other CPUs of the shared pool.
                    if cpus is not None and not cpus <= wanted.exclusive_cpus | reserved:
                        misplaced.setdefault(id_, Misplaced(id_, key, cpus))
                case Refuse(key, id_, reason, is_first=True):
                    about = {"pod_uid": key.pod_uid, "container": key.name, "container_id": id_}
                    self._log.warning("container_denied", **about, problem=reason)
                case _:
                    pass
        self._memory = replace(self._memory, fail_open_starts=fail_open, misplaced=tuple(misplaced.values()))

    def _log_corrected(self, runtime_occupants: tuple[Occupant, ...]) -> None:
        """Log each container that was misplaced and now has the right CPUs."""
        occupant_by_id = {occupant.id: occupant for occupant in runtime_occupants}
        still_misplaced = []
        for container in self._memory.misplaced:
            occupant, cpus = occupant_by_id.get(container.id), self._memory.cgroups.cpus_of(container.id)
            if occupant is not None and (occupant.wanted is None or cpus != occupant.wanted.cpus):
                still_misplaced.append(container)
            elif occupant is not None and cpus != container.cpus:
                key = container.key
                about = {"pod_uid": key.pod_uid, "container": key.name, "container_id": container.id}
                self._log.warning("container_put_right", **about, found=str(container.cpus), restored=str(cpus))
        self._memory = replace(self._memory, misplaced=tuple(still_misplaced))


def _may_ask_for_devices(what: Happening, reported: RuntimeReport) -> bool:
    """Return whether deciding on this event may require the list of devices, because a pod requests devices or CPUs near them."""
    match what:
        case Call():
            return names_devices(what.sandbox)
        case Synchronized():
            return any(map(names_devices, what.sandboxes))
        case Looked():
            return any(map(names_devices, what.found.sandboxes))
        case Retried():
            return any(names_devices(box) for box in reported.sandboxes.values() if box.uid == what.pod_uid)
        case RoomMade():
            return any(map(names_devices, reported.sandboxes.values()))
        case _:
            return False


def read_pod_annotations(sandbox: Sandbox) -> Stated:
    """Parse the annotations of a pod sandbox."""
    found = read_annotations(sandbox)
    return Stated(found.stated, tuple(map(str, found.findings)))


def find_name_problems(pod: Pod) -> tuple[str, ...]:
    """Describe what is wrong with the pod's names, such as a name that is too long."""
    return tuple(f"{breach.value} {breach.allowed}".strip() for breach in names_amiss(pod))
