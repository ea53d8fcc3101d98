"""Exchange between the runtime's connection and the deciding thread: a queue of messages, futures for answers, and changes to push.

The runtime's calls wait for answers in the connection's thread, and pushes wait in a third thread. The deciding thread never waits (D31). A
call without a decision in time is denied. Without this denial, the runtime would start the container without the agent.
"""

import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.domains.runtime.answers import Response
from nodeagent.core.domains.runtime.instructions import Looked
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import MARGIN_MS, Answer, Call, Denial, Event, Runtime, Synchronized, Update
from nodeagent.daemon.domains.runtime.kubelet_pods import PodsApi
from nodeagent.daemon.domains.runtime.runtime_link import Push
from nodeagent.daemon.reports.logs import Log
from nodeagent.daemon.turn.wakeups import WakeUpReason, Wakeups
from nodeagent.edge.runtime.nri import Answered, NriError

_INDEX = 90
"""Position in NRI's order of plugins. The agent runs after plugins that change a container's resources."""
_PUSH_SECONDS = 10.0
_PAUSE_SECONDS = 1.0
_ANSWERED = frozenset({Event.CREATE_CONTAINER, Event.START_CONTAINER, Event.UPDATE_CONTAINER, Event.UPDATE_POD_SANDBOX})
_DECIDED = frozenset({Event.CREATE_CONTAINER, Event.UPDATE_CONTAINER, Event.UPDATE_POD_SANDBOX})
"""Calls that need a decision on a pod. Before the decision, the connection's thread asks kubelet about the pod."""
_DECIDING_SECONDS = MARGIN_MS / 1000 + 0.5
"""Part of the runtime's timeout that is reserved for the decision after kubelet's answer."""
PLUGIN_SECONDS = 0.5
"""Seconds for which a message waits for answers of device plugins. During this wait, the runtime makes no other call."""
_BUSY = "nodeagent has not decided in time: `journalctl -u nodeagent` shows what delays it; the kubelet tries again"


class Message(Struct, frozen=True, eq=False):
    """Message of the runtime to the deciding thread."""

    content: Call | Synchronized | Looked
    answer: Future[Response | Denial] | None = None
    """Answer to the call. None means that no thread waits for an answer."""
    changes_before: int = 0
    """Number of changes sent before this message. The runtime works in order, and has therefore applied all these changes."""
    plugins_until: float = 0.0
    """Monotonic time until which the message waits for answers of device plugins."""

    @property
    def is_event(self) -> bool:
        """Return whether the message reports a past event. Such an event can't be denied if the turn can't be saved."""
        return not isinstance(self.content, Call) or self.content.event not in _ANSWERED

    def set_answer(self, value: Response | Denial) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(value)


class Sent(Struct, frozen=True):
    """Change of CPUs that was sent to the runtime, but isn't visible in the container's cgroup yet."""

    container_id: str
    number: int
    """Sequence number among all sent changes."""
    cpus: CpuSet


class Counts(Struct, frozen=True):
    """Numbers of certain events on the connection since the last turn."""

    late: int = 0
    """Number of calls that were denied because the decision was late."""
    answers_seconds: tuple[float, ...] = ()


class LinkState(Struct, frozen=True):
    """State shared by the threads: one immutable value that is replaced as a whole."""

    runtime: Runtime | None = None
    is_linked: bool = False
    lost_why: str = ""
    """Reason why the connection was lost. Empty means that there is a connection, or that none was tried yet."""
    counts: Counts = Counts()
    is_look_due: bool = False
    """Whether the next push lists the containers again.

    A container that is created during Synchronize may be missing from the runtime's list and from later calls (containerd #13698).
    """
    looked_at: float = 0.0
    due: tuple[Update, ...] = ()
    """Changes that the pushing thread sends next."""
    sent: tuple[Sent, ...] = ()
    changes: int = 0
    push_at: float = 0.0
    """Monotonic time until which pushes aren't tried."""
    push_problem: str = ""
    """Reason why the last push failed. Empty means that the last push succeeded."""

    def with_sent(self, updates: tuple[Update, ...]) -> "LinkState":
        number = self.changes + 1
        new = tuple(
            Sent(update.container_id, number, cpus) for update in updates if (cpus := update.resources.cpus) is not None
        )
        ids = {change.container_id for change in new}
        others = tuple(change for change in self.sent if change.container_id not in ids)
        return replace(self, changes=number, sent=others + new)


class RuntimeExchange:
    """NRI plugin for the connection's thread, and methods for the deciding thread. If `pods` is None, kubelet isn't asked about pods."""

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

    def __init__(self, socket: Path, wakeups: Wakeups, log: Log, pods: PodsApi | None = None) -> None:
        self._socket, self._wakeups, self._log, self._pods = socket, wakeups, log, pods
        self._queue: SimpleQueue[Message] = SimpleQueue()
        self._lock = threading.Lock()
        self._state = LinkState(looked_at=time.monotonic())
        self._is_all_visible = threading.Event()
        """Event that is set while all sent changes are visible in the containers' cgroups."""
        self._pusher: threading.Thread | None = None

    # Methods for the connection's thread

    def configure(self, runtime: Runtime, /) -> None:
        with self._lock:
            self._state = replace(self._state, runtime=runtime)
        if self._pods is not None:
            self._pods.prepare()

    def synchronize(self, known: Synchronized, until: float, /) -> tuple[Update, ...]:
        with self._lock:
            self._state = replace(self._state, lost_why="", is_linked=True, is_look_due=True)
        found = self._ask(self._add_pods(known, until), until)
        return found.answer.updates if isinstance(found, Response) else ()

    def handle(self, call: Call, until: float, /) -> Answer | Denial:
        if call.event not in _ANSWERED:
            self._put(call)
            return Answer()
        if self._pods is not None and call.event in _DECIDED:
            found = self._pods.ask((call.sandbox.uid,), until - _DECIDING_SECONDS)
            call = replace(call, pod=found[0] if found else None)
        decided = self._ask(call, until)
        return decided if isinstance(decided, Denial) else decided.answer

    def shut_down(self) -> None: ...

    def note(self, answered: Answered, /) -> None:
        with self._lock:
            counts = self._state.counts
            counts = replace(counts, answers_seconds=(*counts.answers_seconds, answered.took_seconds))
            self._state = replace(self._state, counts=counts)

    def record_lost(self, err: NriError, _seconds: float) -> None:
        """Record that the connection to the runtime is lost."""
        with self._lock:
            self._state = replace(self._state, lost_why=f"{err.message} ({err.hint})", is_linked=False)
        self._wakeups.wake(WakeUpReason.RUNTIME)

    def _add_pods(self, known: Synchronized, until: float) -> Synchronized:
        """Ask kubelet about the pods for which no answer is saved, and return `known` with the answers added."""
        if self._pods is None:
            return known
        uids = tuple(dict.fromkeys(sandbox.uid for sandbox in known.sandboxes))
        return replace(known, pods=self._pods.ask_unknown(uids, until - _DECIDING_SECONDS))

    def _ask(self, content: Call | Synchronized, until: float) -> Response | Denial:
        answer: Future[Response | Denial] = Future()
        self._put(content, answer)
        try:
            return answer.result(max(0.0, until - time.monotonic() - MARGIN_MS / 1000))
        except TimeoutError:
            answer.cancel()
            with self._lock:
                counts = replace(self._state.counts, late=self._state.counts.late + 1)
                self._state = replace(self._state, counts=counts)
            return Denial(_BUSY)

    def _put(self, content: Call | Synchronized | Looked, answer: Future[Response | Denial] | None = None) -> None:
        with self._lock:
            asked = Message(content, answer, self._state.changes, time.monotonic() + PLUGIN_SECONDS)
        self._queue.put(asked)
        self._wakeups.wake(WakeUpReason.RUNTIME)

    # Methods for the deciding thread

    @property
    def state(self) -> LinkState:
        with self._lock:
            return self._state

    def take(self) -> tuple[Message, ...]:
        """Return the waiting messages. Also clear the due changes, so that no change is pushed before the turn has decided."""
        found = []
        with suppress(Empty):
            while True:
                asked = self._queue.get_nowait()
                if asked.answer is None or asked.answer.set_running_or_notify_cancel():
                    found.append(asked)
                elif isinstance(asked.content, Synchronized):
                    found.append(replace(asked, answer=None))
        done = max((asked.changes_before for asked in found), default=0)
        with self._lock:
            sent = tuple(change for change in self._state.sent if change.number > done)
            self._state = replace(self._state, due=(), sent=sent)
        return tuple(found)

    def take_counts(self) -> Counts:
        """Return the numbers of events since the last call of this method."""
        with self._lock:
            found, self._state = self._state.counts, replace(self._state, counts=Counts())
        return found

    def look_again(self) -> None:
        """Have the next push list the containers again."""
        with self._lock:
            self._state = replace(self._state, is_look_due=True)

    def forget_made(self, known: Collection[str], cpus: Mapping[str, CpuSet | None]) -> None:
        """Forget the sent changes that are visible in cgroups, and all changes of removed containers.

        `known` contains the IDs of the existing containers.
        """
        with self._lock:
            sent = self._state.sent
            sent = tuple(o for o in sent if o.container_id in known and cpus.get(o.container_id) != o.cpus)
            self._state = replace(self._state, sent=sent)
            if not sent:
                self._is_all_visible.set()

    def note_sent(self, updates: tuple[Update, ...]) -> None:
        """Remember the changes that an answer to the runtime contains."""
        with self._lock:
            self._send(updates)

    def push(self, updates: tuple[Update, ...]) -> bool:
        """Push the changes that aren't part of an answer, and list the containers if a list is due.

        Returns:
            Whether a push is due or a sent change isn't visible yet.
        """
        with self._lock:
            state = self._state = replace(self._state, due=updates if self._state.is_linked else ())
        is_due = bool(state.due or state.is_look_due) and state.is_linked and time.monotonic() >= state.push_at
        if is_due and (self._pusher is None or not self._pusher.is_alive()):
            self._pusher = threading.Thread(target=self._push, name="nri-pusher", daemon=True)
            self._pusher.start()
        return bool(is_due or state.due or state.sent)

    # Methods for the pushing thread

    def _push(self) -> None:
        try:
            with Push(self._socket, self._take_due, index=_INDEX + 1) as push:
                push.sent(_PUSH_SECONDS)
                self._note_pushed("", 0.0)
                self._wakeups.wake(WakeUpReason.RUNTIME)
                self._is_all_visible.wait(_PUSH_SECONDS)
        except (NriError, TimeoutError) as err:
            self._note_pushed(str(err), time.monotonic() + _PAUSE_SECONDS)
        self._wakeups.wake(WakeUpReason.RUNTIME)

    def _note_pushed(self, problem: str, push_at: float) -> None:
        with self._lock:
            before = self._state.push_problem
            self._state = replace(self._state, push_problem=problem, push_at=push_at)
        if problem and problem != before:
            self._log.warning("runtime_not_reached", problem=problem)

    def _take_due(self, known: Synchronized) -> tuple[Update, ...]:
        """Return the due changes. While this function runs, the runtime doesn't call plugins."""
        self._put(Looked(self._add_pods(known, time.monotonic() + _PUSH_SECONDS)))
        with self._lock:
            due = self._state.due
            self._state = replace(self._state, is_look_due=False, looked_at=time.monotonic(), due=())
            self._send(due)
        return due

    def _send(self, updates: tuple[Update, ...]) -> None:
        self._state = self._state.with_sent(updates)
        if self._state.sent:
            self._is_all_visible.clear()
