"""Requests from other threads to the deciding thread. A request waits in a queue until a turn takes it, and is answered at the end of the
turn.

If the turn can't fulfil the request, the caller gets an error, and the next turn tries again.
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
    """Request for a turn, with a future for the answer to the caller."""

    retried: frozenset[str] = frozenset()
    """UIDs of pods whose refusal, or refused change, is to be decided again."""
    released: frozenset[str] = frozenset()
    """UIDs of pods to end, although their manifests still exist."""
    answer: Future[NodeView] = field(default_factory=Future)
    """View of the node after the turn, or an error if the turn couldn't fulfil the request. A caller that
    stops waiting cancels the future.
    """


class Requests:
    """Queue of requests. Any thread may add requests. Only the deciding thread takes and answers them."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[TurnRequest] = SimpleQueue()
        self._taken: list[TurnRequest] = []
        """Requests that the current turn handles. Between turns, it contains the requests that remain for the next turn."""
        self._is_closed = False

    def put(self, request: TurnRequest) -> None:
        self._waiting.put(request)
        if self._is_closed:  # after the last turn, nothing takes this request from the queue
            _refuse(self._drain())

    def take(self) -> tuple[TurnRequest, ...]:
        """Return the requests that this turn must handle: the new ones, and those that the last turn couldn't fulfil."""
        self._taken += self._drain()
        return tuple(self._taken)

    def answer(self, view: NodeView, undone: Mapping[str, str], postponed: frozenset[str] = frozenset()) -> None:
        """Answer the requests that this turn has handled. A request about a postponed pod is left for a later turn.

        Args:
            view: view of the node after the turn.
            undone: reasons why requests couldn't be fulfilled, by the pods' UIDs.
            postponed: UIDs of pods that wait for device plugins.
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
        """Refuse all waiting and future requests, because no turn will follow."""
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
