"""Client of the agent's Unix socket. Its errors tell an agent that isn't running from an agent that refuses the request.

This module imports little (only the C part of `socket`, for instance), because the command `job` loads it at every start.
"""

from __future__ import annotations

import os
import struct
import time
from _socket import AF_UNIX, SO_SNDTIMEO, SOCK_STREAM, SOL_SOCKET, socket

from nodeagent.errors import NodeAgentError
from nodeagent.formats.wire.api_messages import (
    MAX_TURN_SECONDS,
    ApiSyntaxError,
    format_request,
    parse_reply,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_REPLY_BYTES = 64 * 1024 * 1024
TURN_CALL_SECONDS = MAX_TURN_SECONDS + 10.0
"""Timeout in seconds of an operation that is answered only after a turn."""
_CHUNK_BYTES = 1 << 18


class ApiUnavailable(NodeAgentError):  # noqa: N818 - a state of the daemon, which callers handle by doing without it
    """The agent doesn't answer at this socket."""


class ApiError(NodeAgentError):
    """The agent answered with an error, or this user may not connect."""


def call(path: str, op: str, /, *, timeout_seconds: float = 10.0, **arguments: Any) -> Any:
    """Call an operation of the agent, and return its result.

    Args:
        path: path of the agent's socket.
        op: name of the operation.
        timeout_seconds: timeout of the whole call.
        arguments: arguments of the operation, as JSON values.

    Raises:
        ApiUnavailable: no process is listening on the socket, or the answer was late or incomplete.
        ApiError: the answer is an error or can't be parsed, or this user may not connect.
    """
    try:
        reply = _exchange(path, format_request(op, arguments), time.monotonic() + timeout_seconds)
    except PermissionError as err:
        raise ApiError(
            f"cannot connect to {path}: {os.strerror(err.errno or 0)}",
            hint="run as root, or as a member of the group nodeagent (`usermod -aG nodeagent USER`)",
        ) from err
    except TimeoutError as err:
        raise ApiUnavailable(
            f"no answer from {path} within {timeout_seconds:g} s",
            hint="see `systemctl status nodeagent` and `journalctl -u nodeagent`",
        ) from err
    except OSError as err:
        reason = os.strerror(err.errno) if err.errno else str(err)
        raise ApiUnavailable(
            f"cannot reach the agent at {path}: {reason}",
            hint="is the daemon running? see `systemctl status nodeagent`",
        ) from err
    if not reply.endswith(b"\n"):
        raise ApiUnavailable(
            f"{path} closed the connection after {len(reply)} bytes, in the middle of its answer",
            hint="the daemon may be stopping: try again; see `journalctl -u nodeagent`",
        )
    try:
        return parse_reply(reply)
    except NodeAgentError as err:
        raise ApiError(err.message, hint=err.hint) from err
    except ApiSyntaxError as err:
        import shlex

        raise ApiError(
            f"cannot parse the answer of {path}: {err}",
            hint=f"does another program listen there? `ss -xlp src {shlex.quote(path)}` shows which",
        ) from err


def _exchange(path: str, request: bytes, deadline: float) -> bytes:
    channel = socket(AF_UNIX, SOCK_STREAM)  # Python's sockets are closed by execve
    try:
        # SO_SNDTIMEO waits while the backlog is full. With settimeout, connect would fail at once (unix(7), EAGAIN).
        seconds = _seconds_left(deadline)
        channel.setsockopt(SOL_SOCKET, SO_SNDTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000)))
        channel.connect(path)
        channel.settimeout(_seconds_left(deadline))
        channel.sendall(request)
        parts: list[bytes] = []
        size = 0
        while not (parts and parts[-1].endswith(b"\n")) and size <= MAX_REPLY_BYTES:
            channel.settimeout(_seconds_left(deadline))
            part = channel.recv(_CHUNK_BYTES)
            if not part:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)
    except BlockingIOError as err:
        raise TimeoutError from err
    finally:
        channel.close()


def _seconds_left(deadline: float) -> float:
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds
