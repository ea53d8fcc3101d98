"""What other threads ask of the deciding one: a request waits in a queue for a turn, and is answered when that turn has ended."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

from msgspec import Struct, field

from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView


class Request(Struct, eq=False):
    """What a turn should handle."""

    retried: frozenset[str] = frozenset()
    """UIDs of pods to decide on again, or whose changed manifests to decide on again."""
    released: frozenset[str] = frozenset()
    """UIDs of pods to end whatever their manifests say."""
    answer: Future[NodeView] = field(default_factory=Future)
    """The node after the turn. An error: there was no turn."""


class Requests:
    """Any thread may put; the deciding one does the rest."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Request] = SimpleQueue()
        self._taken: list[Request] = []
        """Taken by the current turn."""
        self._is_closed = False

    def put(self, request: Request) -> None:
        self._waiting.put(request)
        if self._is_closed:  # possibly after the last look into the queue
            _refuse(self._drained())

    def take(self) -> tuple[Request, ...]:
        """Return what waits for a turn."""
        self._taken += self._drained()
        return tuple(self._taken)

    def answer(self, view: NodeView) -> None:
        """Answer the requests that were taken with the node as it is after the turn. Their threads may have stopped waiting."""
        for request in self._taken:
            request.answer.set_result(view)
        self._taken.clear()

    def close(self) -> None:
        """Announce that there will be no further turn."""
        self._is_closed = True
        _refuse([*self._taken, *self._drained()])
        self._taken.clear()

    def _drained(self) -> Iterator[Request]:
        with suppress(Empty):
            while True:
                yield self._waiting.get_nowait()


def _refuse(requests: Iterable[Request]) -> None:
    for request in requests:
        request.answer.set_exception(
            NodeAgentError("the agent is stopping, nothing was decided", hint="`systemctl start nodeagent`, then again")
        )
