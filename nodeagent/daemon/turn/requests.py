"""What other threads ask of the deciding one: a request waits in a queue for a turn, and is answered when that turn has ended.

What a turn could not do stays noted for the next one, but nobody waits for that.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

from msgspec import Struct, field

from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView

_NOTED = "the agent keeps the request in mind until it can decide or is stopped: see `nodeagent inspect`"


class TurnRequest(Struct, eq=False):
    """What a turn should handle."""

    retried: frozenset[str] = frozenset()
    """UIDs of pods to decide on again, or whose changed manifests to decide on again."""
    released: frozenset[str] = frozenset()
    """UIDs of pods to end whatever their manifests say."""
    answer: Future[NodeView] = field(default_factory=Future)
    """The node after the turn. An error: there was none, or it could not do it. Cancelled: nobody waits for it any more."""


class Requests:
    """Any thread may put; the deciding one does the rest. What is noted is about pods that there are, each once."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[TurnRequest] = SimpleQueue()
        self._taken: list[TurnRequest] = []
        """By the turn that is under way; after it, as one, what it could not do."""
        self._is_closed = False

    def put(self, request: TurnRequest) -> None:
        self._waiting.put(request)
        if self._is_closed:  # possibly after the last look into the queue
            _refuse(self._drained())

    def take(self) -> tuple[TurnRequest, ...]:
        """Return what waits for a turn."""
        self._taken += self._drained()
        return tuple(self._taken)

    def answer(self, view: NodeView, undone: Mapping[str, str]) -> None:
        """Give those whose requests were taken the node as it is after the turn.

        Args:
            view: the node.
            undone: UIDs of pods for which the turn could not do what was asked, and why. It stays noted.

        """
        taken, self._taken = self._taken, []
        noted = TurnRequest()
        for request in taken:
            retried, released = (uids & undone.keys() for uids in (request.retried, request.released))
            noted.retried, noted.released = noted.retried | retried, noted.released | released
            if not request.answer.set_running_or_notify_cancel():
                continue
            why = next((undone[uid] for uid in sorted(retried | released)), None)
            if why is None:
                request.answer.set_result(view)
            else:
                request.answer.set_exception(NodeAgentError(f"nothing is decided yet: {why}", hint=_NOTED))
        if noted.retried or noted.released:
            self._taken.append(noted)

    def close(self) -> None:
        """Announce that there will be no further turn."""
        self._is_closed = True
        _refuse([*self._taken, *self._drained()])
        self._taken.clear()

    def _drained(self) -> Iterator[TurnRequest]:
        with suppress(Empty):
            while True:
                yield self._waiting.get_nowait()


def _refuse(requests: Iterable[TurnRequest]) -> None:
    for request in requests:
        if request.answer.set_running_or_notify_cancel():
            request.answer.set_exception(
                NodeAgentError(
                    "the agent stops, and nothing was decided", hint="`systemctl start nodeagent`, then again"
                )
            )
