"""Messages between the thread of the runtime's connection and the deciding thread: a queue of messages, futures for the answers, and
changes to push.

The connection's thread waits for the answer to each call, and a third thread pushes changes, so the deciding thread never waits (D31). If
the decision on a call is late, the call is denied; otherwise the runtime would start the container without the agent's decision.
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
"""Position in the order in which NRI calls its plugins. It is high, so that the agent sees resources after
other plugins have changed them.
"""
_PUSH_SECONDS = 10.0
_PAUSE_SECONDS = 1.0
_ANSWERED = frozenset({Event.CREATE_CONTAINER, Event.START_CONTAINER, Event.UPDATE_CONTAINER, Event.UPDATE_POD_SANDBOX})
_DECIDED = frozenset({Event.CREATE_CONTAINER, Event.UPDATE_CONTAINER, Event.UPDATE_POD_SANDBOX})
"""Calls that need a decision on a pod. The connection's thread first asks kubelet about the pod."""
_DECIDING_SECONDS = MARGIN_MS / 1000 + 0.5
"""Part of the runtime's timeout that is reserved for the decision. kubelet has to answer before this part begins."""
PLUGIN_SECONDS = 0.5
"""Seconds for which a message may wait for answers of device plugins. The wait is short, because the runtime
makes no other call meanwhile.
"""
_BUSY = "nodeagent has not decided in time: `journalctl -u nodeagent` shows what delays it; the kubelet tries again"


class Message(Struct, frozen=True, eq=False):
    """Message from the runtime for the deciding thread."""

    content: Call | Synchronized | Looked
    answer: Future[Response | Denial] | None = None
    """Future for the answer to a call. None means that no thread waits for an answer."""
    changes_before: int = 0
    """Number of changes that were sent before this message. The runtime handles everything in order, so it has already applied these
    changes.
    """
    plugins_until: float = 0.0
    """Monotonic time after which the message waits no more for device plugins."""

    @property
    def is_event(self) -> bool:
        """Return whether the message only reports what has happened. Unlike a call, it can't be denied if the turn fails to save."""
        return not isinstance(self.content, Call) or self.content.event not in _ANSWERED

    def set_answer(self, value: Response | Denial) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(value)


class Sent(Struct, frozen=True):
    """Change of a container's CPUs that was sent to the runtime but isn't visible in the container's cgroup yet."""

    container_id: str
    number: int
    """Sequence number of the change."""
    cpus: CpuSet


class Counts(Struct, frozen=True):
    """Statistics of the connection since the last turn."""

    late: int = 0
    """Number of calls that were denied because the agent had not decided in time."""
    answers_seconds: tuple[float, ...] = ()


class LinkState(Struct, frozen=True):
    """State of the connection, shared by the threads. The value is immutable, and replaced as a whole under a lock."""

    runtime: Runtime | None = None
    is_linked: bool = False
    lost_why: str = ""
    """Reason why the agent isn't connected to the runtime. Empty means that it is connected, or hasn't tried yet."""
    counts: Counts = Counts()
    is_look_due: bool = False
    """Path of the pod's cgroup, whose event counters tell whether the OOM killer ended the job. The path is empty until the job is
    admitted.
    """
    looked_at: float = 0.0
    due: tuple[Update, ...] = ()
    """Changes that the pushing thread sends next."""
    sent: tuple[Sent, ...] = ()
    changes: int = 0
    push_at: float = 0.0
    """Monotonic time before which no push is tried, because the last push failed."""
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
    """NRI plugin that the connection's thread serves, with methods for the deciding thread. If `pods` is None, the plugin doesn't ask
    kubelet about pods.
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

    def __init__(self, socket: Path, wakeups: Wakeups, log: Log, pods: PodsApi | None = None) -> None:
        self._socket, self._wakeups, self._log, self._pods = socket, wakeups, log, pods
        self._queue: SimpleQueue[Message] = SimpleQueue()
        self._lock = threading.Lock()
        self._state = LinkState(looked_at=time.monotonic())
        self._is_all_visible = threading.Event()
        """Event that is set when the containers' cgroups show all sent changes. The pushing thread waits for it."""
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
        """Record that the connection to the runtime is lost, and wake the deciding thread."""
        with self._lock:
            self._state = replace(self._state, lost_why=f"{err.message} ({err.hint})", is_linked=False)
        self._wakeups.wake(WakeUpReason.RUNTIME)

    def _add_pods(self, known: Synchronized, until: float) -> Synchronized:
        """Ask kubelet about those pods for which no answer is saved, and add the answers to the runtime's list."""
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
        """Return the waiting messages. Also discard the changes that are due, because this turn's decision replaces them."""
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
        """Return the statistics since the last call of this method."""
        with self._lock:
            found, self._state = self._state.counts, replace(self._state, counts=Counts())
        return found

    def look_again(self) -> None:
        """Request that the next push also lists the runtime's containers."""
        with self._lock:
            self._state = replace(self._state, is_look_due=True)

    def forget_made(self, known: Collection[str], cpus: Mapping[str, CpuSet | None]) -> None:
        """Forget sent changes that the cgroups now show, and all changes of removed containers.

        Args:
            known: IDs of the existing containers.
            cpus: effective CPUs of the cgroups, by container ID.
        """
        with self._lock:
            sent = self._state.sent
            sent = tuple(o for o in sent if o.container_id in known and cpus.get(o.container_id) != o.cpus)
            self._state = replace(self._state, sent=sent)
            if not sent:
                self._is_all_visible.set()

    def note_sent(self, updates: tuple[Update, ...]) -> None:
        """Remember the changes to other containers that an answer to the runtime contains."""
        with self._lock:
            self._send(updates)

    def push(self, updates: tuple[Update, ...]) -> bool:
        """Push changes that no answer contains. If a list of the containers is due, request the list with the same push.

        Returns:
            Whether a push is due, or a sent change isn't visible in a cgroup yet.
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
        """Return the changes that are due, and queue the runtime's list of containers. The runtime calls no plugin until this function
        returns.
        """
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
