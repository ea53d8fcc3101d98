"""The local API's answers: permissions, and which function answers. Knows neither sockets nor what the operations mean."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from nodeagent.errors import NodeAgentError
from nodeagent.formats.wire.api_messages import (
    MAX_REQUEST_BYTES,
    ApiRequest,
    ApiSyntaxError,
    Failure,
    format_failure,
    format_result,
    parse_request,
)
from nodeagent.formats.wire.exchange import Bounds, Broken, Peer

Operation = Callable[[Mapping[str, Any]], Any]
"""Takes a request's arguments and gives what JSON can hold; a NodeAgentError is the answer's error."""
WaitingOperation = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""The same, for an answer that has to be waited for."""
PeerOperation = Callable[[Mapping[str, Any], Peer], Awaitable[Any]]
"""The same, and it judges by itself who asks."""

_NEXT_STEPS = {
    Broken.BUG: "`journalctl -u nodeagent` has what happened: please report it",
    Broken.BUSY: "wait a second; `ss -xp` shows who keeps connections to the agent's socket",
}
_ROOT = 0


class LocalApi:
    """A service for `ServingThread.serve`.

    Args:
        reads: operations for the owner, root and the group. They run in the serving thread: quick ones, on immutable values only. An
            answer that is the same object as the one before it is not encoded again.
        writes: operations for the owner and root. They run in the serving thread, too, and wait there without blocking it, with a deadline
            of their own.
        owner: user id that the agent runs as.
        group: group whose members may read; None: there is none.
        open_to_all: operations for everybody who may connect. They run and wait as writes do.
    """

    bounds = Bounds(connections=32, request_bytes=MAX_REQUEST_BYTES, read_seconds=5.0, write_seconds=10.0)
    terminator = b"\n"

    def __init__(
        self,
        *,
        reads: Mapping[str, Operation],
        writes: Mapping[str, WaitingOperation],
        owner: int,
        group: int | None,
        open_to_all: Mapping[str, PeerOperation] = MappingProxyType({}),
    ) -> None:
        assert not reads.keys() & writes.keys()
        self._open_to_all = open_to_all
        self._reads = reads
        self._writes = writes
        self._owner = owner
        self._group = group
        self._printed, self._printed_of = b"", object()

    async def answer(self, request: bytes, peer: Peer | None) -> bytes:
        assert peer is not None, "the local API is for Unix sockets"
        try:
            asked = parse_request(request)
        except ApiSyntaxError as err:
            return format_failure(
                Failure(
                    f"malformed request: {err}",
                    'one JSON object a line, with an "op": `nodeagent inspect -o json` speaks it',
                )
            )
        try:
            result = await self._carry_out(asked, peer)
        except NodeAgentError as err:
            return format_failure(Failure(err.message, err.hint))
        if result is not self._printed_of:
            self._printed, self._printed_of = format_result(result), result
        return self._printed

    async def _carry_out(self, request: ApiRequest, peer: Peer) -> object:
        is_owner = peer.uid in {_ROOT, self._owner}
        if request.op in self._reads:
            if is_owner or self._group in peer.gids:
                return self._reads[request.op](request.arguments)
            raise _refused(
                request.op, peer, "run as root, or as a member of the group nodeagent (`usermod -aG nodeagent USER`)"
            )
        if request.op in self._writes:
            if is_owner:
                return await self._writes[request.op](request.arguments)
            raise _refused(request.op, peer, "run as root (`sudo nodeagent …`)")
        if request.op in self._open_to_all:
            return await self._open_to_all[request.op](request.arguments, peer)
        known = ", ".join(sorted({*self._reads, *self._writes, *self._open_to_all}))
        raise NodeAgentError(
            f"unknown operation '{request.op}'",
            hint=f"this nodeagent knows: {known}; does its version differ from the command's? see `nodeagent --version`",
        )

    def refusal(self, why: Broken) -> bytes:
        return format_failure(
            Failure(why.value, _NEXT_STEPS.get(why, "at most 64 KiB within 5 s, one request a connection"))
        )


def _refused(op: str, peer: Peer, hint: str) -> NodeAgentError:
    return NodeAgentError(f"user {peer.uid} may not ask for '{op}'", hint=hint)
