"""Keeps the agent connected to a container runtime as its plugin, and takes changes to it that no call asks for. No policy."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from nodeagent.core.model.nri import Answer, Call, Event, Runtime, Synchronized, Update
from nodeagent.edge.runtime.nri import Answered, NriConnection, NriError, Plugin
from nodeagent.formats.runtime.ttrpc import TtrpcCode

PAUSES_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Before the first, second, … attempt to connect again; then always the last. While the runtime is without a plugin, what it starts is not
pinned: a restart of containerd takes about a second.
"""


class RuntimeLink:
    """For a thread of its own: connects, and connects again.

    Args:
        path: the runtime's socket.
        plugin: who answers, in that thread.
        on_lost: told in that thread why there is no connection, and in how many seconds the next attempt follows.
        pause: waits for so many seconds, or until `close`.
    """

    def __init__(
        self,
        path: Path,
        plugin: Plugin,
        on_lost: Callable[[NriError, float], None],
        *,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._path = path
        self._plugin = plugin
        self._on_lost = on_lost
        self._is_closed = threading.Event()
        self._pause = pause or self._is_closed.wait
        self._connection = NriConnection(path, plugin)

    def run(self) -> None:
        """Return after `close`."""
        failures = 0
        while not self._is_closed.is_set():
            try:
                self._connection.serve()
            except NriError as err:
                failures = 1 if self._connection.is_synchronized else failures + 1
                seconds = PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS)) - 1]
                self._on_lost(err, seconds)
                self._pause(seconds)
                self._connection = NriConnection(self._path, self._plugin)

    def close(self) -> None:
        """End `run`, from any thread."""
        self._is_closed.set()
        self._connection.close()


class Push:
    """Changes of containers that exist, at any time: a plugin of its own connects, and its answer to Synchronize carries them.

    Runtime.UpdateContainers would be the call for that, and deadlocks containerd (its #13733). Without changes it is a look at what runs:
    what was made while a plugin connected may be in neither its list nor its calls (containerd #13698).

    Use it in `with`: `sent()`, then see by the containers' cgroups that it is done, and only then leave. The runtime tells nothing, and
    drops what it has not read when the connection ends. Not while a call is being answered: until then the runtime synchronizes nobody.
    """

    name = "nodeagent-push"
    events = frozenset({Event.REMOVE_POD_SANDBOX})
    """There is no empty subscription, and of all events this one asks for nothing."""

    def __init__(self, path: Path, updates: Callable[[Synchronized], tuple[Update, ...]], *, index: int) -> None:
        """Updates: asked for, with what runs, while the runtime calls nobody: what they rest on is not older than any answer."""
        self.index = index
        self._updates = updates
        self._count = 0
        self._path = path
        self._known: Synchronized | None = None
        self._sent: Future[Synchronized] = Future()
        self._connection = NriConnection(path, self)
        self._thread = threading.Thread(target=self._serve, name="nri-push", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._thread.join()

    def sent(self, timeout_seconds: float) -> Synchronized:
        """Wait until the changes are on their way, and return what runs.

        Raises:
            NriError: they aren't, and won't be.
            TimeoutError: the runtime has not asked yet.
        """
        return self._sent.result(timeout_seconds)

    def configure(self, _runtime: Runtime) -> None: ...

    def synchronize(self, known: Synchronized, _until: float) -> tuple[Update, ...]:
        updates = self._updates(known)
        self._known, self._count = known, len(updates)
        return updates

    def handle(self, _call: Call, _until: float) -> Answer:
        return Answer()

    def shut_down(self) -> None: ...

    def note(self, answered: Answered) -> None:
        if self._known is None or self._sent.done():
            return
        if answered.code == TtrpcCode.OK:
            self._sent.set_result(self._known)
        else:
            self._sent.set_exception(_too_many(self._path, self._count))

    def _serve(self) -> None:
        try:
            self._connection.serve()
        except NriError as err:
            if not self._sent.done():
                self._sent.set_exception(err)


def _too_many(path: Path, count: int) -> NriError:
    return NriError(path, f"{count} changes don't fit into one answer", "please report it; see `nodeagent inspect`")
