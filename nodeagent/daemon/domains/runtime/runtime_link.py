"""Connections to the runtime as an NRI plugin: a permanent connection that serves calls, and short ones that push changes."""

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
"""Seconds to wait before each attempt to reconnect. The last value repeats.

The pauses are short, because the runtime starts containers without the agent meanwhile. containerd restarts in about a second.
"""


class RuntimeLink:
    """Connection as an NRI plugin. A separate thread opens it again whenever it is lost.

    Args:
        path: path of the runtime's socket.
        plugin: the plugin.
        on_lost: function that is called after a loss, with the error and the seconds until the next attempt.
        pause: function that waits these seconds. None means a wait that `close` interrupts.
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
        """Serve the runtime's calls, and reconnect after a loss, until `close` is called."""
        failures = 0
        while not self._is_closed.is_set():
            try:
                self._connection.serve()
            except NriError as err:
                failures = 1 if self._connection.is_synchronized else failures + 1
                seconds = PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS)) - 1]
                self._on_lost(err, seconds)
                self._pause(seconds)
            finally:
                self._connection = NriConnection(self._path, self._plugin)

    def close(self) -> None:
        """End the connection and the loop of `run`. Any thread may call this method."""
        self._is_closed.set()
        self._connection.close()


class Push:
    """Push of changes to existing containers. A second plugin connects for the push, and answers the runtime's Synchronize with the
    changes.

    NRI's call UpdateContainers isn't used for this purpose, because it deadlocks containerd (containerd #13733). A push without changes
    serves to list the containers (containerd #13698).

    Use the push in a `with` block: call `sent()`, wait until the containers' cgroups show the changes, and leave the block. The wait is
    necessary because the runtime doesn't confirm changes, and drops those that it hasn't read when the connection ends.
    """

    name = "nodeagent-push"
    events = frozenset({Event.REMOVE_POD_SANDBOX})
    """Event to which the plugin subscribes, because NRI rejects an empty subscription. This event requires no decision."""

    def __init__(self, path: Path, updates: Callable[[Synchronized], tuple[Update, ...]], *, index: int) -> None:
        """Prepare a push. The `with` block starts it.

        `updates` returns the changes for the listed containers. The runtime calls no plugin until `updates` returns, so no answer to a call
        can contradict the changes.
        """
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
        """Wait until the changes are sent. Return the runtime's list of containers.

        Raises:
            NriError: the changes can't be sent.
            TimeoutError: the runtime has not synchronized the plugin in time.
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
            why = f"{self._count} changes don't fit into one answer"
            self._sent.set_exception(NriError(self._path, why, "please report it; see `nodeagent inspect`"))

    def _serve(self) -> None:
        try:
            self._connection.serve()
        except NriError as err:
            if not self._sent.done():
                self._sent.set_exception(err)
