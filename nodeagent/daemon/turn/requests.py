"""Requests of other threads to the deciding thread. Each request waits in a queue for a turn, and is answered at the turn's end.

If a turn could not fulfil a request, the caller gets an error, and the next turn tries the request again.
"""

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue

from msgspec import Struct, field

from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView

_NOTED = "the agent keeps the request until it can decide or is stopped: see `nodeagent inspect`"


class TurnRequest(Struct, eq=False):
    """Request that a turn handles, with the answer for the caller."""

    retried: frozenset[str] = frozenset()
    """UIDs of pods on which a new decision is requested: refused pods, or pods with refused changes."""
    released: frozenset[str] = frozenset()
    """UIDs of pods to end although they have manifests."""
    answer: Future[NodeView] = field(default_factory=Future)
    """View after the turn, or an error if the turn could not fulfil the request. The future is cancelled if the caller stops waiting."""


class Requests:
    """Queue of requests. Any thread may add requests; the deciding thread takes and answers them."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[TurnRequest] = SimpleQueue()
        self._taken: list[TurnRequest] = []
        """Requests of the current turn. Between turns, the list has one request with everything that the last turn could not fulfil."""
        self._is_closed = False

    def put(self, request: TurnRequest) -> None:
        self._waiting.put(request)
        if self._is_closed:  # after the last turn, nothing takes this request from the queue
            _refuse(self._drain())

    def take(self) -> tuple[TurnRequest, ...]:
        """Return the requests for this turn: the waiting requests, and the requests that the last turn could not fulfil."""
        self._taken += self._drain()
        return tuple(self._taken)

    def answer(self, view: NodeView, undone: Mapping[str, str], postponed: frozenset[str] = frozenset()) -> None:
        """Answer the requests of this turn. Requests to decide on postponed pods are answered by a later turn.

        Args:
            view: view after the turn.
            undone: reasons why requests could not be fulfilled, by pod UID.
            postponed: UIDs of the pods on which a later turn decides.
        """
        taken = [request for request in self._taken if not request.retried & postponed]
        self._taken = [request for request in self._taken if request.retried & postponed]
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
        """Refuse all waiting and future requests, because there will be no further turn."""
        self._is_closed = True
        _refuse([*self._taken, *self._drain()])
        self._taken.clear()

    def _drain(self) -> Iterator[TurnRequest]:
        with suppress(Empty):
            while True:
                yield self._waiting.get_nowait()


def _refuse(requests: Iterable[TurnRequest]) -> None:
    for request in requests:
        if request.answer.set_running_or_notify_cancel():
            request.answer.set_exception(
                NodeAgentError(
                    "the agent is stopping, and has decided nothing", hint="`systemctl start nodeagent`, then again"
                )
            )
