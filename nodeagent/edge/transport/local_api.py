"""Dispatcher of the local API: it checks whether the client may use an operation, and calls the function that answers."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

from nodeagent.errors import NodeAgentError
from nodeagent.formats.wire.api_messages import (
    MAX_REQUEST_BYTES,
    ApiSyntaxError,
    format_error,
    format_result,
    parse_request,
)
from nodeagent.formats.wire.exchange import Bounds, Broken, Peer

Operation = Callable[[Mapping[str, Any]], Any]
"""Function that computes a JSON value from the arguments of a request. If it raises NodeAgentError, the client gets this error."""
WaitingOperation = Callable[[Mapping[str, Any]], Awaitable[Any]]
"""Operation that may wait, for instance for the next turn."""
PeerOperation = Callable[[Mapping[str, Any], Peer], Awaitable[Any]]
"""Operation that may wait, and that checks the client's permission itself."""

_NEXT_STEPS = {
    Broken.BUG: "see `journalctl -u nodeagent`, and please report it",
    Broken.BUSY: "wait a second; `ss -xp` lists the processes with connections to the agent's socket",
}
_ROOT = 0


class LocalApi:
    """Local API, as a service for `ServingThread.serve`. Its operations run in the serving thread, so they must not block.

    Args:
        reads: operations for root, the owner and the group. They must be quick. If an operation returns the same object as the last call,
            the encoded answer is reused.
        writes: operations for root and the owner. Each limits its own duration.
        owner: user ID of the agent.
        group: ID of the group whose members may use `reads`. None means that there is no such group.
        open_to_all: operations for all users who may connect. Each limits its own duration.
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
            result = await self._run(*parse_request(request), peer)
        except ApiSyntaxError as err:
            hint = 'one JSON object a line, with an "op": `nodeagent inspect -o json` speaks it'
            return format_error(NodeAgentError(f"malformed request: {err}", hint=hint))
        except NodeAgentError as err:
            return format_error(err)
        if result is not self._printed_of:
            self._printed, self._printed_of = format_result(result), result
        return self._printed

    async def _run(self, op: str, arguments: Mapping[str, object], peer: Peer) -> object:
        is_owner = peer.uid in {_ROOT, self._owner}
        if op in self._reads:
            if is_owner or self._group in peer.gids:
                return self._reads[op](arguments)
            raise _make_permission_error(
                op, peer, "run as root, or as a member of the group nodeagent (`usermod -aG nodeagent USER`)"
            )
        if op in self._writes:
            if is_owner:
                return await self._writes[op](arguments)
            raise _make_permission_error(op, peer, "run as root (`sudo nodeagent …`)")
        if op in self._open_to_all:
            return await self._open_to_all[op](arguments, peer)
        known = ", ".join(sorted({*self._reads, *self._writes, *self._open_to_all}))
        raise NodeAgentError(
            f"unknown operation '{op}'",
            hint=f"this nodeagent knows: {known}; does its version differ from the command's? see `nodeagent --version`",
        )

    def make_refusal(self, reason: Broken) -> bytes:
        hint = _NEXT_STEPS.get(reason, "send one request of at most 64 KiB per connection, within 5 s")
        return format_error(NodeAgentError(reason.value, hint=hint))


def _make_permission_error(op: str, peer: Peer, hint: str) -> NodeAgentError:
    return NodeAgentError(f"user {peer.uid} may not ask for '{op}'", hint=hint)
