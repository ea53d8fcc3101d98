"""gRPC calls over unix sockets, made with h2. Knows the frames of messages, but no message.

Everything that the server sends is judged here. Whatever it is, it ends as an answer or as a GrpcError. h2 takes megabytes, so it is loaded
with the first connection.
"""

import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from nodeagent.errors import NodeAgentError, printable
from nodeagent.formats.wire.grpc_messages import CONTENT_TYPE, Status, add_frame, parse_status
from nodeagent.formats.wire.http2_frames import MAX_FRAME_BYTES, FrameBound

if TYPE_CHECKING:
    from h2.connection import H2Connection

_PIECE_BYTES = 64 * 1024
_MORE_BYTES = 64 * 1024
"""Bound of what may come with each message, such as heads of frames, headers and settings."""
_HEAD_BYTES = 5
"""Length of a message's head, which says whether the message is compressed, and its length."""
_MAX_TEXT = 300
_CONNECT_SECONDS = 1.0
"""Time to connect where the call itself has no end."""
_CLOCKS_DIFFER_SECONDS = 0.05
"""Most time between the end of a call by our clock and by the server's, which is told the rest in milliseconds."""


class GrpcServerKind(Struct, frozen=True):
    """What kind of server is called, for the texts of errors."""

    name: str
    hint: str
    hint_if_late: str = ""
    """Hint if the server has not answered in time. Empty means `hint`."""


class GrpcError(NodeAgentError):
    """A server can't be reached, refuses a call, or breaks the protocol. Its connection is of no more use, unless it refuses."""

    def __init__(
        self,
        kind: GrpcServerKind,
        path: Path,
        what: str,
        *,
        is_absent: bool = False,
        is_late: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(
            f"cannot call {kind.name} at {path}: {what}", hint=(is_late and kind.hint_if_late) or kind.hint
        )
        self.what = printable(what)
        self.is_absent = is_absent
        """Whether there is no such socket."""
        self.is_late = is_late
        """Whether the call would have taken longer than there is time."""
        self.status = status
        """gRPC status of a refusal. None means that the server has not answered as gRPC should."""


def load() -> None:
    """Load h2 before there is a call."""
    import h2.connection  # noqa: F401, PLC0415 - that is what it is for


class GrpcClient:
    """One connection. Use it in `with`, for one call after the other.

    Args:
        kind: of the server.
        path: of its socket.
        until: when all calls have to be over, as of time.monotonic(). None means that the server ends them.
        max_bytes: bound of a message.
    """

    def __init__(self, kind: GrpcServerKind, path: Path, until: float | None, max_bytes: int) -> None:
        self._kind = kind
        self._path = path
        self._until = until
        self._max_bytes = max_bytes
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._h2: H2Connection | None = None
        self._bound = FrameBound()

    def __enter__(self) -> Self:
        """Raises GrpcError."""
        try:
            self._connect()
        except BaseException:
            self._channel.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def interrupt(self) -> None:
        """End the connection from another thread. A call that waits for an answer raises GrpcError then."""
        try:
            self._channel.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is closed, or was never connected

    def call(self, method: str, message: bytes, metadata: Iterable[tuple[str, str]] = ()) -> bytes:
        """Return the one message of the answer.

        Raises:
            GrpcError: there is no answer, the server refuses, or there are more messages than one.
        """
        answers = self.watch(method, message, metadata)
        answer = next(answers, None)
        if answer is None:
            raise self._nonsense("an answer without a message")
        for _ in answers:
            raise self._nonsense("more than one message in an answer")
        return answer

    def watch(self, method: str, message: bytes, metadata: Iterable[tuple[str, str]] = ()) -> Iterator[bytes]:
        """Yield each message of the answer as it comes, until the server ends the call with status OK.

        Raises:
            GrpcError: the call ends otherwise.
        """
        from h2.exceptions import H2Error  # noqa: PLC0415 - loaded with the connection

        assert self._h2 is not None
        try:
            stream = self._h2.get_next_available_stream_id()
            headers = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", method),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", CONTENT_TYPE),
                *metadata,
            ]
            if self._until is not None:
                headers.append(("grpc-timeout", f"{max(1, int(self._left(self._until) * 1000))}m"))
            self._h2.send_headers(stream, headers)
            self._h2.send_data(stream, add_frame(message), end_stream=True)
            yield from self._messages(stream)
        except (H2Error, UnicodeDecodeError) as err:
            raise self._nonsense(str(err) or type(err).__name__) from err

    def _connect(self) -> None:
        try:
            # For connect: with Python's own timeout that would fail at once where the backlog is full (unix(7), EAGAIN).
            left = _CONNECT_SECONDS if self._until is None else self._left(self._until)
            limit = struct.pack("ll", int(left), max(1, int(left % 1 * 1_000_000)))
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._channel.connect(os.fspath(self._path))
        except FileNotFoundError as err:
            raise GrpcError(self._kind, self._path, "there is no such socket", is_absent=True) from err
        except BlockingIOError as err:
            raise self._late() from err
        except OSError as err:
            raise self._failed(err.strerror or str(err)) from err
        from h2.config import H2Configuration  # noqa: PLC0415 - only where there is a server
        from h2.connection import H2Connection  # noqa: PLC0415 - as above

        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()

    def _messages(self, stream: int) -> Iterator[bytes]:
        from h2.events import (  # noqa: PLC0415 - loaded with the connection
            ConnectionTerminated,
            DataReceived,
            ResponseReceived,
            StreamEnded,
            StreamReset,
            TrailersReceived,
        )

        assert self._h2 is not None
        said: dict[str, str] = {}
        body = bytearray()
        received = 0
        is_over = False
        while not is_over:
            self._send(self._h2.data_to_send())
            data = self._receive()
            received += len(data)
            if not data:
                raise self._failed("it closed the connection before it had answered")
            if received > self._max_bytes + _MORE_BYTES:
                raise self._nonsense(f"an answer of more than {self._max_bytes} bytes")
            if not self._bound.allows(data):
                raise self._nonsense(f"a frame of more than {MAX_FRAME_BYTES} bytes")
            for event in self._h2.receive_data(data):
                match event:
                    case ResponseReceived(stream_id=at, headers=headers) if at == stream:
                        said |= _texts(headers)
                        if said.get(":status") != "200":
                            raise self._nonsense(f"it answers with HTTP's status {said.get(':status')}")
                    case TrailersReceived(stream_id=at, headers=headers) if at == stream:
                        said |= _texts(headers)
                    case DataReceived(stream_id=at, data=piece) if at == stream:
                        self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                        body += piece or b""
                    case StreamEnded(stream_id=at) if at == stream:
                        is_over = True
                    case StreamReset(stream_id=at) if at == stream:
                        raise self._nonsense("it broke the call off")
                    case ConnectionTerminated():
                        raise self._failed("it ended the connection")
                    case _:
                        pass
            while (message := self._taken(body)) is not None:
                received = len(body)
                yield message
        self._judge(said)
        if body:
            raise self._nonsense("an answer that ends within a message")

    def _judge(self, said: dict[str, str]) -> None:
        """Raise GrpcError unless the trailers say that the call has ended with status OK."""
        status = parse_status(said.get("grpc-status", ""))
        if status is None:
            raise self._nonsense("an answer without gRPC's status")
        is_time_up = self._until is not None and time.monotonic() > self._until - _CLOCKS_DIFFER_SECONDS
        if status == Status.DEADLINE_EXCEEDED and is_time_up:
            raise self._late()  # the server was told when the call ends, and has said so a moment before we would have
        if status != Status.OK:
            text = said.get("grpc-message", "")[:_MAX_TEXT]
            raise GrpcError(self._kind, self._path, f"it refuses: {text} ({status})", status=status)

    def _taken(self, body: bytearray) -> bytes | None:
        """Take the first whole message from what has come. None means that none is whole yet."""
        if len(body) < _HEAD_BYTES:
            return None
        if body[0] != 0:
            raise self._nonsense("a compressed message")
        size = int.from_bytes(body[1:_HEAD_BYTES])
        if size > self._max_bytes:
            raise self._nonsense(f"an answer of more than {self._max_bytes} bytes")
        if len(body) < _HEAD_BYTES + size:
            return None
        found = bytes(body[_HEAD_BYTES : _HEAD_BYTES + size])
        del body[: _HEAD_BYTES + size]
        return found

    def _send(self, data: bytes) -> None:
        try:
            self._channel.settimeout(None if self._until is None else self._left(self._until))
            self._channel.sendall(data)
        except TimeoutError as err:
            raise self._late() from err
        except OSError as err:
            raise self._failed(err.strerror or str(err)) from err

    def _receive(self) -> bytes:
        try:
            self._channel.settimeout(None if self._until is None else self._left(self._until))
            return self._channel.recv(_PIECE_BYTES)
        except TimeoutError as err:
            raise self._late() from err
        except OSError as err:
            raise self._failed(err.strerror or str(err)) from err

    def _left(self, until: float) -> float:
        left = until - time.monotonic()
        if left <= 0:
            raise self._late()
        return left

    def _late(self) -> GrpcError:
        return GrpcError(self._kind, self._path, "it has not answered in time", is_late=True)

    def _failed(self, what: str) -> GrpcError:
        return GrpcError(self._kind, self._path, what)

    def _nonsense(self, what: str) -> GrpcError:
        return self._failed(f"it does not speak gRPC as it should: {what[:_MAX_TEXT]}")


def _texts(headers: Iterable[tuple[str | bytes, str | bytes]] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers or ()}
