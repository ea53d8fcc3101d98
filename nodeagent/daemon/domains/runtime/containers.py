"""The containers of a container runtime: its calls as requests that a turn answers, and changes that no call asks for. Loaded where it is
configured only.

The runtime's calls wait for their answers in a thread of its own, and so does what pushes changes: the deciding thread waits for neither
(D31). What isn't decided in time is denied, where the runtime would otherwise go on without the agent.
"""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.cgroups.desired_cgroups import Kernel
from nodeagent.core.domains.runtime.answers import Occupant, Response, WantedPlacement, response
from nodeagent.core.domains.runtime.registry import (
    CountFailOpen,
    Happening,
    Looked,
    Populated,
    PutRight,
    Refuse,
    Retried,
    Todo,
    Unserved,
)
from nodeagent.core.model.cgroup import DesiredCgroup, ObservedCgroup, unclear_units
from nodeagent.core.model.cgroup_layout import OWN_DIRECTORIES
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import (
    MARGIN_MS,
    Answer,
    Call,
    Denial,
    Event,
    NriContainer,
    Runtime,
    Sandbox,
    Synchronized,
    Update,
)
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.runtime_containers import ContainerKey, MadeContainer, Stage
from nodeagent.core.model.state import NodeState
from nodeagent.core.resources.devices.holdings import DeviceHoldings, HeldDevice
from nodeagent.core.turn.containers import (
    Node,
    Stated,
    Told,
    awaits_end,
    has_any,
    occupants,
    own_occupants,
    pool_of,
    promised,
    strangers,
    take,
    verdict,
)
from nodeagent.core.turn.step import Turn, World
from nodeagent.daemon.domains.runtime.kubelet_pods import PodsApi
from nodeagent.daemon.domains.runtime.runtime_link import Push, RuntimeLink
from nodeagent.daemon.domains.runtime.untracked_cgroups import Strangers
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.reports.metrics_recorder import MetricsRecorder
from nodeagent.daemon.reports.problems import unserved_containers
from nodeagent.daemon.turn.runs import Unprepared
from nodeagent.daemon.turn.troubles import Trouble, trouble_of
from nodeagent.daemon.turn.wakeups import WakeUpReason, Wakeups
from nodeagent.edge.cgroups.cgroupfs import CgroupError, CgroupTree
from nodeagent.edge.runtime.nri import Answered, NriError
from nodeagent.formats.manifest.pod_rules import misnamed as names_amiss
from nodeagent.formats.runtime.annotations import names_devices, read_annotations

if TYPE_CHECKING:
    from nodeagent.core.model.devices import PlacedDevices
    from nodeagent.core.model.topology import Topology

_INDEX = 90
"""Behind plugins that change what is asked for."""
_PUSH_SECONDS = 10.0
_PAUSE_SECONDS = 1.0
LOOK_SECONDS = 60.0
"""After which to look whether refused pods are still there: after its own restart containerd 1.7 doesn't tell that they are removed. And
whether there are processes among kubelet's pods that belong to no container.
"""
_ANSWERED = frozenset({Event.CREATE_CONTAINER, Event.START_CONTAINER, Event.UPDATE_CONTAINER, Event.UPDATE_POD_SANDBOX})
_TELLING = frozenset({Event.CREATE_CONTAINER, Event.UPDATE_CONTAINER, Event.UPDATE_POD_SANDBOX})
"""What is decided on: kubelet is asked about the pod before."""
_DECIDING_SECONDS = MARGIN_MS / 1000 + 0.5
"""Of the runtime's patience, what is left to decide when kubelet has been asked."""
_CDI_SINCE = (0, 7, 0)
_BUSY = "nodeagent has not decided in time: `journalctl -u nodeagent` says what holds it up; the kubelet tries again"


class _Counted(Struct, frozen=True):
    """Since the last time."""

    unasked: int = 0
    """Containers that were found to have begun while nobody was asked."""
    late: int = 0
    """Calls that were denied because nothing was decided in time."""
    answers_seconds: tuple[float, ...] = ()


class _Asked(Struct, eq=False):
    what: Call | Synchronized | Looked
    answer: Future[Response | Denial] | None = None
    """None: nobody waits."""
    after: int = 0
    """How many changes had been sent before it: these have been done, or have failed, as the runtime does one thing after the other."""


class Containers:
    """A plugin of the runtime for its link's thread, and the runtime's part of a turn for the deciding one.

    Args:
        socket: the runtime's.
        tree: for the cgroups.
        wakeups: of the deciding thread.
        log: for what is about no pod.
        pods: kubelet's, which says what the runtime isn't told. None: it isn't asked.
    """

    name = "nodeagent"
    index = _INDEX
    events = frozenset(
        {
            Event.RUN_POD_SANDBOX,
            Event.STOP_POD_SANDBOX,
            Event.REMOVE_POD_SANDBOX,
            Event.CREATE_CONTAINER,
            Event.START_CONTAINER,
            Event.UPDATE_CONTAINER,
            Event.UPDATE_POD_SANDBOX,
            Event.STOP_CONTAINER,
            Event.REMOVE_CONTAINER,
        }
    )

    def __init__(self, socket: Path, tree: CgroupTree, wakeups: Wakeups, log: Log, pods: PodsApi | None = None) -> None:
        self._socket, self._tree = socket, tree
        self._wakeups, self._log = wakeups, log
        self._pods = pods
        self.prepare: Callable[[tuple[HeldDevice, ...]], Unprepared | None] = lambda _: None
        """Lets device plugins prepare the devices of a container that is about to be created. None means that they have."""
        self.link = RuntimeLink(socket, self, self.lost)
        self._queue: SimpleQueue[_Asked] = SimpleQueue()
        self._lock = threading.RLock()
        """For what the link's and the pushing thread share with the deciding one."""
        self._lost_why: NriError | None = None
        self._runtime: Runtime | None = None
        self._is_linked = False
        self._is_to_look = False
        """What was made while the runtime synchronized may be in neither its list nor its calls (containerd #13698)."""
        self._looked_at = time.monotonic()
        self._counted = _Counted()
        self._due: tuple[Update, ...] = ()
        """What a push would send now."""
        self._sent: dict[str, tuple[int, CpuSet]] = {}
        """By id, what the runtime was told to give, and with which of all changes: until it is seen, or the runtime is done with it."""
        self._changes = 0
        self._is_done = threading.Event()
        """Nothing that was sent is still to be seen."""
        self._pusher: threading.Thread | None = None
        self._push_again, self._push_failed = 0.0, ""
        """When to try it again, and what prevented the last push."""
        self._sandboxes: dict[str, Sandbox] = {}
        self._containers: dict[str, NriContainer] = {}
        self._unsaved: list[_Asked] = []
        """What has happened and could not be saved: it has happened all the same."""
        self._open: list[tuple[_Asked, tuple[Todo, ...]]] = []
        """Of the turn that is under way."""
        self._astray: dict[str, tuple[ContainerKey, CpuSet]] = {}
        """By id, containers that began unasked or were moved, and where they were found: until they are seen to be where they belong."""
        self._untold: tuple[Todo, ...] = ()
        """What is to be logged and counted of it, once it is saved."""
        self._seen: dict[str, ObservedCgroup] = {}
        self._looked: set[str] = set()
        """Whose cgroups were read in this turn, be they there or not."""
        self._node: Node | None = None
        self._is_blind = False
        """A cgroup of the runtime's containers can't be read: any CPU may be theirs."""
        self._trouble = Trouble("")
        self._is_waiting = False
        self._said = ""
        self._left = ""
        """Whose promises are still kept, though nobody tells of them any more."""
        self.is_served = True
        """False: nobody connects to the runtime, so nobody tells whose cgroups these are."""
        self._strangers = Strangers(tree, log)

    # The link's thread

    def configure(self, runtime: Runtime, /) -> None:
        self._runtime = runtime
        if self._pods is not None:
            self._pods.prepare()

    def synchronize(self, known: Synchronized, until: float, /) -> tuple[Update, ...]:
        with self._lock:
            self._lost_why, self._is_linked, self._is_to_look = None, True, True
        found = self._ask(self._completed(known, until), until)
        return found.answer.updates if isinstance(found, Response) else ()

    def handle(self, call: Call, until: float, /) -> Answer | Denial:
        if call.event not in _ANSWERED:
            self._put(_Asked(call))
            return Answer()
        if self._pods is not None and call.event in _TELLING:
            told = self._pods.of((call.sandbox.uid,), until - _DECIDING_SECONDS)
            call = replace(call, pod=told[0] if told else None)
        found = self._ask(call, until)
        return found if isinstance(found, Denial) else found.answer

    def shut_down(self) -> None: ...

    def note(self, answered: Answered, /) -> None:
        with self._lock:
            took = (*self._counted.answers_seconds, answered.took_seconds)
            self._counted = replace(self._counted, answers_seconds=took)

    def _completed(self, known: Synchronized, until: float) -> Synchronized:
        """With what kubelet says of those pods that it hasn't said anything of yet."""
        if self._pods is None:
            return known
        uids = tuple(dict.fromkeys(sandbox.uid for sandbox in known.sandboxes))
        return replace(known, pods=self._pods.unknown_of(uids, until - _DECIDING_SECONDS))

    def _ask(self, what: Call | Synchronized, until: float) -> Response | Denial:
        asked = _Asked(what, Future())
        assert asked.answer is not None
        self._put(asked)
        try:
            return asked.answer.result(max(0.0, until - time.monotonic() - MARGIN_MS / 1000))
        except TimeoutError:
            asked.answer.cancel()
            with self._lock:
                self._counted = replace(self._counted, late=self._counted.late + 1)
            return Denial(_BUSY)

    def _put(self, asked: _Asked) -> None:
        with self._lock:
            asked.after = self._changes
        self._queue.put(asked)
        self._wakeups.wake(WakeUpReason.RUNTIME)

    def lost(self, err: NriError, _seconds: float) -> None:
        """Take note that nobody is served now."""
        with self._lock:
            self._lost_why, self._is_linked = err, False
        self._wakeups.wake(WakeUpReason.RUNTIME)

    # The deciding thread

    def problem(self) -> str | None:
        """Return why the runtime isn't served; None: it is, or was not tried yet. Logs each change."""
        with self._lock:
            why, is_linked = self._lost_why, self._is_linked
        text = "" if why is None else f"{why.message} ({why.hint})"
        if text and text != self._said:
            self._log.warning("runtime_lost", problem=text)
        elif is_linked and self._said != "linked":
            assert self._runtime is not None
            version = ".".join(map(str, self._runtime.nri_version))
            self._log.info("runtime_linked", runtime=self._runtime.name, version=self._runtime.version, nri=version)
            text = "linked"
        self._said = text or self._said
        unreached = f"changes don't reach the runtime: {self._push_failed}" if self._push_failed and why is None else ""
        unasked = "" if self._pods is None else self._pods.problem
        parts = ["" if why is None else text, unreached, self._left, unasked]
        if self._strangers.has_listed or why is not None:
            parts.append(self._strangers.problem)
        return "; ".join(filter(None, parts)) or None

    def count(self, metrics: MetricsRecorder) -> None:
        """Count what has happened since the last time."""
        with self._lock:
            found, self._counted = self._counted, _Counted()
        metrics.count_runtime(found.unasked, found.late, found.answers_seconds)

    @property
    def is_unsettled(self) -> bool:
        """Whether something is to change that wakes nobody."""
        return self._is_waiting

    @property
    def has_told(self) -> bool:
        """Whether it is known, and saved, which containers there are; where nobody connects, nobody tells it."""
        is_saved = not any(isinstance(one.what, Synchronized) for one in self._unsaved)
        return (self._strangers.has_listed and is_saved) or not self.is_served

    def decide(
        self, decided: Turn, world: World, kernel: Kernel, devices: "Callable[[Topology], PlacedDevices]"
    ) -> Turn:
        """Decide on what the runtime has told and asked since the last turn.

        Args:
            decided: the turn as far as it is decided.
            world: what was observed for it.
            kernel: the machine's.
            devices: looks at them, if a pod asks to be near some.
        """
        told = Told(self._sandboxes, self._containers)
        state, events, deltas = decided.state, decided.events, decided.deltas
        asked = self._take()
        self._look(state)
        happenings: list[tuple[_Asked | None, Happening]] = []
        if not self.is_served and has_any(state.runtime) and not self._is_blind:
            happenings.append((None, Unserved(self._maybe_running(state))))
        elif awaits_end(state.runtime) and not self._is_blind:
            populated = frozenset(id_ for id_, there in self._seen.items() if there.is_populated)
            happenings.append((None, Populated(populated)))
        retried = [e.pod.uid for e in state.entries if e.is_of_runtime and e.pod.uid in world.retried]
        happenings += [(None, Retried(uid)) for uid in retried]
        if retried and self._pods is not None:
            self._pods.ask_again(retried)
            with self._lock:
                self._is_to_look = True
        happenings += [(one, one.what) for one in asked]
        if any(self._asks_for_devices(what) for _, what in happenings):
            world = replace(world, managers=world.managers.knowing(devices(world.managers.topology)))
        node = self._node = Node(world, kernel, told, stated, str(self._tree.mount), misnamed)
        self._open, self._untold, self._left = [], (), ""
        for one, what in happenings:
            if isinstance(what, Call | Synchronized | Looked):
                self._note_told(what)
                self._strangers.has_listed |= isinstance(what, Synchronized)
            taken = take(state, what, node)
            state, events, deltas = taken.state, events + taken.events, deltas + taken.deltas
            self._untold += taken.todo
            if one is not None:
                self._open.append((one, taken.todo))
        self._look(state, again=False)
        self._look_for_strangers(state)
        return replace(decided, state=state, events=events, deltas=deltas)

    def _asks_for_devices(self, what: Happening) -> bool:
        """Whether a pod may be decided on now that asks to be near devices, or for some of its own."""
        match what:
            case Call():
                return names_devices(what.sandbox)
            case Synchronized():
                return any(map(names_devices, what.sandboxes))
            case Looked():
                return any(map(names_devices, what.found.sandboxes))
            case Retried():
                return any(names_devices(one) for one in self._sandboxes.values() if one.uid == what.pod_uid)
        return False

    def not_saved(self, why: Trouble) -> None:
        """Answer those who wait that nothing was decided. What has happened is taken up by the next turn."""
        for asked, _ in self._open:
            if asked.answer is not None:
                _set(asked.answer, Denial(f"nodeagent could not save its decision: {why}; the kubelet tries again"))
            if not isinstance(asked.what, Call) or asked.what.event not in _ANSWERED:
                self._unsaved.append(_Asked(asked.what))
        self._open, self._untold = [], ()
        self._is_waiting = True

    def occupied(self, state: NodeState) -> CpuSet:
        """Return the CPUs that the runtime's containers are still to leave."""
        assert self._node is not None
        cpus = self._node.kernel.online if self._is_blind else CpuSet()
        for one in (*occupants(state, self._node, self._seen, self._under_way()), *strangers(self._strangers.found)):
            cpus |= one.overdue
        return cpus

    def answer(
        self, state: NodeState, wanted: tuple[DesiredCgroup, ...], not_left: CpuSet, of_units: Mapping[str, str]
    ) -> tuple[Trouble, ...]:
        """Answer the calls of this turn, whose state is saved and whose cgroups are written; have the rest pushed.

        Args:
            state: saved.
            wanted: what the cgroups of ours should hold.
            not_left: CPUs that somebody could not be made to leave, be it a systemd unit.
            of_units: device files that could not be taken from a systemd unit, each with its unit.
        """
        assert self._node is not None
        opened, self._open = self._open, []
        self._report(self._untold)
        self._untold = ()
        if self._pods is not None:
            self._pods.known = frozenset(pod.uid for pod in state.runtime.pods)
        theirs = (*occupants(state, self._node, self._seen, self._under_way()), *strangers(self._strangers.found))
        pool = pool_of(state, self._node)
        own: tuple[Occupant, ...] = ()
        if any(asked.answer is not None for asked, _ in opened) or response(theirs, pool=pool) != Response(Answer()):
            try:
                own = own_occupants(wanted, self._tree.read(OWN_DIRECTORIES), state)
            except CgroupError as err:
                self._is_blind, self._trouble = True, trouble_of(err)
        if self._is_blind:
            for asked, _ in opened:
                if asked.answer is not None:
                    _set(
                        asked.answer, Denial(f"nodeagent can't read cgroups: {self._trouble}; the kubelet tries again")
                    )
            self._is_waiting = True
            return (self._trouble,)
        self._report_placed(theirs)
        others = (Occupant("a unit or pod that could not be made to leave", not_left, None),) if not_left else ()
        there = (*own, *theirs, *others)
        pinned = tuple(
            Occupant(f"unit {unit}, which a pod has pinned that is not known now", cpus, None)
            for unit, cpus in unclear_units(self._node.world.observed).items()
        )
        answered = False
        for asked, todo in opened:
            if asked.answer is None:
                continue
            if isinstance(asked.what, Call):
                reserved = self._node.world.managers.reserved & self._node.kernel.online
                around = (*there, *pinned) if asked.what.event is Event.START_CONTAINER else there
                found = verdict(asked.what, todo, promised(state, self._node), around, self._seen, pool, reserved)
                found = self._with_devices(found, asked.what, state, of_units)
            else:
                found = response(there, pool=pool)
            if isinstance(found, Response):
                self._note_sent(found.answer.updates)
                answered |= bool(found.answer.updates)
            elif not any(isinstance(one, Refuse) for one in todo):
                self._log.warning("container_denied", problem=found.reason)
            _set(asked.answer, found)
        if state.runtime.refused and time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._is_to_look = True
        if self.is_served:
            self._have_pushed(response(there, pool=pool), answered=answered)
            self._is_waiting |= awaits_end(state.runtime)
        else:
            self._is_waiting = False
            self._left = unserved_containers(state) if any(one.is_held for one in state.runtime.entries) else ""
        self._forget(state)
        return ()

    def _with_devices(
        self, found: Response | Denial, call: Call, state: NodeState, of_units: Mapping[str, str]
    ) -> Response | Denial:
        """Add what a container that is created needs for devices of its own."""
        if call.event is not Event.CREATE_CONTAINER or call.container is None or isinstance(found, Denial):
            return found
        key = ContainerKey.of(call.sandbox, call.container)
        held = state.promises.of_pod(key.pod_uid)
        if not (devices := held.of(DeviceHoldings).devices_of(key.name)):
            return found
        from nodeagent.daemon.domains.runtime.device_access import access_of  # noqa: PLC0415 - few containers have any

        assert self._runtime is not None
        answers = next((own for name, own in held.of(DeviceHoldings).answers if name == key.name), ())
        takes_cdi = self._runtime.nri_version >= _CDI_SINCE
        access = access_of(devices, answers, call.container.variables, takes_cdi=takes_cdi)
        taken = () if isinstance(access, str) else tuple(file.path for file in access.files if file.path in of_units)
        if taken:
            access = f"unit {of_units[taken[0]]} may still use {taken[0]}: see `nodeagent inspect`"
        unprepared = Unprepared(access) if isinstance(access, str) else self.prepare(devices)
        if unprepared is not None:
            return Denial(f"container {key.name}: {unprepared.why}; the kubelet tries again")
        assert not isinstance(access, str)
        return replace(found, answer=replace(found.answer, access=access))

    def _take(self) -> list[_Asked]:
        """Take what waits. Nothing is pushed from here on until the turn has decided what is due."""
        found, self._unsaved = self._unsaved, []
        with suppress(Empty):
            while True:
                asked = self._queue.get_nowait()
                if asked.answer is None or asked.answer.set_running_or_notify_cancel():
                    found.append(asked)
                elif isinstance(asked.what, Synchronized):
                    found.append(_Asked(asked.what, after=asked.after))
        with self._lock:
            self._due = ()
            done = max((asked.after for asked in found), default=0)
            self._sent = {id_: sent for id_, sent in self._sent.items() if sent[0] > done}
        return found

    def _note_told(self, what: Call | Synchronized | Looked) -> None:
        if isinstance(what, Synchronized):
            self._sandboxes.clear()
            self._containers.clear()
        found = what.found if isinstance(what, Looked) else what
        if isinstance(found, Synchronized):
            self._sandboxes |= {one.id: one for one in found.sandboxes}
            self._containers |= {one.id: one for one in found.containers}
            return
        self._sandboxes[found.sandbox.id] = found.sandbox
        if found.container is not None:
            self._containers[found.container.id] = found.container

    def _forget(self, state: NodeState) -> None:
        ids = {made.id for entry in state.runtime.entries for made in entry.made}
        pods = {one.id for one in state.runtime.sandboxes}
        for id_ in self._containers.keys() - ids:
            del self._containers[id_]
        for id_ in self._sandboxes.keys() - pods:
            del self._sandboxes[id_]

    def _look(self, state: NodeState, *, again: bool = True) -> None:
        """Read the cgroups of the runtime's containers, each once a turn: after the calls that the turn answers have been taken, so what
        is about to begin is in its cgroup. Nothing is pushed from then on, and the runtime waits, or asks in the next turn.

        Args:
            state: whose containers.
            again: all of them; otherwise those that are new.
        """
        found: dict[str, ObservedCgroup] = {} if again else dict(self._seen)
        looked = set[str]() if again else self._looked
        try:
            for entry in state.runtime.entries:
                for made in entry.made:
                    if made.id in looked or not made.cgroup:
                        continue
                    looked.add(made.id)
                    there = self._tree.read_of_others(made.cgroup)
                    if there is not None:
                        found[made.id] = there
        except CgroupError as err:
            self._is_blind, self._trouble = True, trouble_of(err)
            return
        self._looked, self._seen = looked, found
        self._is_blind &= not again
        cpus = {id_: there.cpus_effective for id_, there in found.items()}
        known = {made.id for entry in state.runtime.entries for made in entry.made}
        with self._lock:
            self._sent = {id_: sent for id_, sent in self._sent.items() if id_ in known and cpus.get(id_) != sent[1]}
            if not self._sent:
                self._is_done.set()

    def _maybe_running(self, state: NodeState) -> frozenset[str]:
        """Where a container's cgroup isn't known, nobody knows whether it has ended."""
        made = (made for entry in state.runtime.entries for made in entry.made)
        return frozenset(
            one.id
            for one in made
            if not one.cgroup or ((there := self._seen.get(one.id)) and there.is_populated) or self._may_begin(one)
        )

    def _may_begin(self, one: MadeContainer) -> bool:
        """What was created and has no cgroup yet begins whenever the runtime wants, as long as there is a process of its pod."""
        if one.stage is not Stage.CREATED or one.id in self._seen:
            return False
        try:
            pod = self._tree.read_of_others(str(Path(one.cgroup).parent))
        except CgroupError:
            return True
        return pod is not None and pod.is_populated

    def _look_for_strangers(self, state: NodeState) -> None:
        if self.is_served:
            try:
                self._strangers.look(state.runtime, LOOK_SECONDS)
            except CgroupError as err:
                self._is_blind, self._trouble = True, trouble_of(err)

    def _under_way(self) -> dict[str, CpuSet]:
        with self._lock:
            return {id_: cpus for id_, (_, cpus) in self._sent.items()}

    def _report(self, todo: tuple[Todo, ...]) -> None:
        for one in todo:
            match one:
                case CountFailOpen(key, container_id):
                    self._note_astray(key, container_id)
                    with self._lock:
                        self._counted = replace(self._counted, unasked=self._counted.unasked + 1)
                    self._log.warning(
                        "container_began_unasked", pod_uid=key.pod_uid, container=key.name, container_id=container_id
                    )
                case PutRight(key, container_id, wanted):
                    if not self._is_beginning(container_id, wanted):
                        self._note_astray(key, container_id)
                case Refuse(key, container_id, reason, is_first=True):
                    self._log.warning(
                        "container_denied",
                        pod_uid=key.pod_uid,
                        container=key.name,
                        container_id=container_id,
                        problem=reason,
                    )
                case _:
                    pass

    def _note_astray(self, key: ContainerKey, container_id: str) -> None:
        there = self._seen.get(container_id)
        if there is not None:
            self._astray.setdefault(container_id, (key, there.cpus_effective or CpuSet()))

    def _is_beginning(self, container_id: str, wanted: WantedPlacement) -> bool:
        """Whether a container is where it was created, and has still to get the pool."""
        assert self._node is not None
        there = self._seen.get(container_id)
        created = wanted.exclusive_cpus | self._node.world.managers.reserved
        return there is not None and (there.cpus_effective or CpuSet()) <= created

    def _report_placed(self, there: tuple[Occupant, ...]) -> None:
        """Log what has come to where it belongs, as seen in its cgroup."""
        seen = {one.id: one for one in there}
        for id_, (key, found) in tuple(self._astray.items()):
            one, cgroup = seen.get(id_), self._seen.get(id_)
            cpus = None if cgroup is None else cgroup.cpus_effective
            if one is not None and (one.wanted is None or cpus != one.wanted.cpus):
                continue
            del self._astray[id_]
            if one is not None and cpus != found:
                self._log.warning(
                    "container_put_right",
                    pod_uid=key.pod_uid,
                    container=key.name,
                    container_id=id_,
                    found=str(found),
                    restored=str(cpus),
                )

    # Pushing

    def _note_sent(self, updates: tuple[Update, ...]) -> None:
        with self._lock:
            self._changes += 1
            self._sent |= {
                one.container_id: (self._changes, one.resources.cpus)
                for one in updates
                if one.resources.cpus is not None
            }
            if self._sent:
                self._is_done.clear()

    def _have_pushed(self, wanted: Response, *, answered: bool) -> None:
        """Have the changes made that no answer carries. Those that an answer carries come with it, and are looked at again."""
        with self._lock:
            self._due = () if answered or not self._is_linked else wanted.answer.updates
            is_due = bool(self._due or self._is_to_look) and self._is_linked and time.monotonic() >= self._push_again
            waits = any(one.cpus for one in wanted.waiting)
            self._is_waiting = bool(answered or waits or is_due or self._due or self._sent)
        if is_due and (self._pusher is None or not self._pusher.is_alive()):
            self._pusher = threading.Thread(target=self._push, name="nri-pusher", daemon=True)
            self._pusher.start()

    def _push(self) -> None:
        try:
            with Push(self._socket, self._hand_over, index=_INDEX + 1) as push:
                push.sent(_PUSH_SECONDS)
                self._push_failed = ""
                self._wakeups.wake(WakeUpReason.RUNTIME)
                self._is_done.wait(_PUSH_SECONDS)
        except (NriError, TimeoutError) as err:
            self._push_again = time.monotonic() + _PAUSE_SECONDS
            if str(err) != self._push_failed:
                self._log.warning("runtime_not_reached", problem=str(err))
            self._push_failed = str(err)
        self._wakeups.wake(WakeUpReason.RUNTIME)

    def _hand_over(self, known: Synchronized) -> tuple[Update, ...]:
        """In the pushing thread, while the runtime calls nobody."""
        self._put(_Asked(Looked(self._completed(known, time.monotonic() + _PUSH_SECONDS))))
        with self._lock:
            self._is_to_look, self._looked_at = False, time.monotonic()
            due, self._due = self._due, ()
            self._note_sent(due)
        return due


def stated(sandbox: Sandbox) -> Stated:
    """Read what a pod's annotations say."""
    found = read_annotations(sandbox)
    return Stated(found.stated, tuple(map(str, found.findings)))


def misnamed(pod: Pod) -> tuple[str, ...]:
    """Return what is wrong with a pod's names, for people."""
    return tuple(f"{one.value} {one.allowed}".strip() for one in names_amiss(pod))


def _set(answer: "Future[Response | Denial]", value: Response | Denial) -> None:
    if not answer.done():
        answer.set_result(value)
