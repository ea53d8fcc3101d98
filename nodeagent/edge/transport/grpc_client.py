"""Client for gRPC over Unix sockets, based on h2. Whatever the server sends, a call results in an answer or a GrpcError.

h2 takes megabytes of memory, so it is imported only for the first connection.
"""

import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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
"""Maximum number of bytes to receive in addition to the message: frame headers, HTTP headers and settings."""
_PREFIX_BYTES = 5
"""Length in bytes of the prefix of a gRPC message: a compression flag, and the message's length."""
_MAX_TEXT = 300
_CONNECT_SECONDS = 1.0
"""Seconds to wait for the connection, if the calls have no deadline."""
_CLOCKS_DIFFER_SECONDS = 0.05
"""Seconds by which the server may report DEADLINE_EXCEEDED too early. The server's deadline may be earlier than the client's, because
grpc-timeout is rounded down.
"""


class GrpcServerKind(Struct, frozen=True):
    """Description of a gRPC server, for error messages."""

    name: str
    hint: str
    hint_if_late: str = ""
    """Hint for an error that is raised because the server hasn't answered in time. Empty means that `hint` is used."""


class GrpcError(NodeAgentError):
    """A gRPC server can't be reached, refuses a call, or doesn't follow the protocol. Only after a refusal can the connection be used for
    further calls.
    """

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
        """Whether the server's socket doesn't exist."""
        self.is_late = is_late
        """Whether the server hasn't answered in time."""
        self.status = status
        """gRPC status with which the server refused the call. None means that the call failed without a status."""


def load_h2() -> None:
    """Import h2 now, so that the import doesn't delay the first call."""
    import h2.connection  # noqa: F401, PLC0415 - that is what it is for


class GrpcClient:
    """Connection to a gRPC server, for consecutive calls. A `with` block opens and closes it.

    Args:
        kind: description of the server.
        path: path of the server's socket.
        until: deadline of all calls, in seconds of time.monotonic(). None means that there is none.
        max_bytes: maximum accepted size of a message.
    """

    def __init__(self, kind: GrpcServerKind, path: Path, until: float | None, max_bytes: int) -> None:
        self._kind = kind
        self._path = path
        self._until = until
        self._max_bytes = max_bytes
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._h2: H2Connection | None = None
        self._bound = FrameBound()
        self._unsent = b""
        """Part of the request that isn't sent yet, because the server's flow control window is too small."""

    def __enter__(self) -> Self:
        """Connect to the server.

        Raises:
            GrpcError: the connection failed.
        """
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
        """End the connection, so that a call in progress raises GrpcError. Any thread may call this method."""
        with suppress(OSError):  # the socket is closed, or was never connected
            self._channel.shutdown(socket.SHUT_RDWR)

    def call(self, method: str, message: bytes, metadata: Iterable[tuple[str, str]] = ()) -> bytes:
        """Make a unary call, and return the answer's message.

        Raises:
            GrpcError: the server refuses the call or doesn't answer in time, or its answer doesn't consist of one message.
        """
        answers = self.watch(method, message, metadata)
        answer = next(answers, None)
        if answer is None:
            raise self._make_protocol_error("the answer contains no message")
        for _ in answers:
            raise self._make_protocol_error("the answer contains more than one message")
        return answer

    def watch(self, method: str, message: bytes, metadata: Iterable[tuple[str, str]] = ()) -> Iterator[bytes]:
        """Make a streaming call, and yield each message of the answer when it arrives. The iteration ends when the server ends the call
        with status OK.

        Raises:
            GrpcError: the server ends the call with another status, or the connection fails.
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
                headers.append(("grpc-timeout", f"{max(1, int(self._seconds_left(self._until) * 1000))}m"))
            self._h2.send_headers(stream, headers)
            self._unsent = add_frame(message)
            yield from self._receive_messages(stream)
        except (H2Error, UnicodeDecodeError) as err:
            raise self._make_protocol_error(str(err) or type(err).__name__) from err

    def _connect(self) -> None:
        try:
            # With settimeout, connect would fail at once while the backlog is full (unix(7), EAGAIN).
            seconds = _CONNECT_SECONDS if self._until is None else self._seconds_left(self._until)
            timeval = struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1_000_000)))
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            self._channel.connect(os.fspath(self._path))
        except FileNotFoundError as err:
            raise GrpcError(self._kind, self._path, "there is no such socket", is_absent=True) from err
        except BlockingIOError as err:
            raise self._make_late_error() from err
        except OSError as err:
            raise self._make_error(err.strerror or str(err)) from err
        from h2.config import H2Configuration  # noqa: PLC0415 - only where there is a server
        from h2.connection import H2Connection  # noqa: PLC0415 - as above

        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()

    def _receive_messages(self, stream: int) -> Iterator[bytes]:
        from h2.events import (  # noqa: PLC0415 - loaded with the connection
            ConnectionTerminated,
            DataReceived,
            ResponseReceived,
            StreamEnded,
            StreamReset,
            TrailersReceived,
        )

        assert self._h2 is not None
        received_headers: dict[str, str] = {}
        body = bytearray()
        received = 0
        is_over = False
        while not is_over:
            self._queue_request(stream)
            with self._convert_errors():
                self._channel.sendall(self._h2.data_to_send())
            with self._convert_errors():
                data = self._channel.recv(_PIECE_BYTES)
            received += len(data)
            if not data:
                raise self._make_error("it closed the connection before its answer was complete")
            if received > self._max_bytes + _MORE_BYTES:
                raise self._make_protocol_error(f"the answer has more than {self._max_bytes} bytes")
            if not self._bound.allows(data):
                raise self._make_protocol_error(f"a frame of its answer has more than {MAX_FRAME_BYTES} bytes")
            for event in self._h2.receive_data(data):
                match event:
                    case ResponseReceived(stream_id=at, headers=headers) if at == stream:
                        received_headers |= _decode_headers(headers)
                        status = received_headers.get(":status")
                        if status != "200":
                            raise self._make_protocol_error(f"it answers with HTTP status {status}")
                    case TrailersReceived(stream_id=at, headers=headers) if at == stream:
                        received_headers |= _decode_headers(headers)
                    case DataReceived(stream_id=at, data=piece) if at == stream:
                        self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                        body += piece or b""
                    case StreamEnded(stream_id=at) if at == stream:
                        is_over = True
                    case StreamReset(stream_id=at) if at == stream:
                        raise self._make_protocol_error("it aborted the call (RST_STREAM)")
                    case ConnectionTerminated():
                        raise self._make_error("it is closing the connection (GOAWAY)")
                    case _:
                        pass
            while (message := self._pop_message(body)) is not None:
                received = len(body)
                yield message
        self._check_status(received_headers)
        if body:
            raise self._make_protocol_error("the answer ends in the middle of a message")
        if self._unsent:
            raise self._make_protocol_error("the answer came before the whole request was sent")

    def _queue_request(self, stream: int) -> None:
        """Pass the next part of the request to h2. The part is limited by the maximum frame size and the server's flow control window."""
        assert self._h2 is not None
        while self._unsent:
            size = min(len(self._unsent), self._h2.max_outbound_frame_size, self._h2.local_flow_control_window(stream))
            if size <= 0:
                return  # the client continues to send after the server's next WINDOW_UPDATE
            piece, self._unsent = self._unsent[:size], self._unsent[size:]
            self._h2.send_data(stream, piece, end_stream=not self._unsent)

    def _check_status(self, headers: dict[str, str]) -> None:
        status = parse_status(headers.get("grpc-status", ""))
        if status is None:
            raise self._make_protocol_error("the answer has no gRPC status")
        is_time_up = self._until is not None and time.monotonic() > self._until - _CLOCKS_DIFFER_SECONDS
        if status == Status.DEADLINE_EXCEEDED and is_time_up:
            raise self._make_late_error()
        if status != Status.OK:
            text = headers.get("grpc-message", "")[:_MAX_TEXT]
            raise GrpcError(self._kind, self._path, f"it refuses the call: {text} ({status})", status=status)

    def _pop_message(self, body: bytearray) -> bytes | None:
        """Remove the first message from the received bytes, and return it. None means that it isn't complete yet."""
        if len(body) < _PREFIX_BYTES:
            return None
        if body[0] != 0:
            raise self._make_protocol_error("the answer contains a compressed message")
        size = int.from_bytes(body[1:_PREFIX_BYTES])
        if size > self._max_bytes:
            raise self._make_protocol_error(f"the answer has more than {self._max_bytes} bytes")
        if len(body) < _PREFIX_BYTES + size:
            return None
        message = bytes(body[_PREFIX_BYTES : _PREFIX_BYTES + size])
        del body[: _PREFIX_BYTES + size]
        return message

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        """During the `with` block, limit the socket's operations to the time that is left until the deadline. Convert their errors to
        GrpcError.
        """
        try:
            self._channel.settimeout(None if self._until is None else self._seconds_left(self._until))
            yield
        except TimeoutError as err:
            raise self._make_late_error() from err
        except OSError as err:
            raise self._make_error(err.strerror or str(err)) from err

    def _seconds_left(self, until: float) -> float:
        seconds = until - time.monotonic()
        if seconds <= 0:
            raise self._make_late_error()
        return seconds

    def _make_late_error(self) -> GrpcError:
        return GrpcError(
            self._kind,
            self._path,
            f"it has not {'read the request' if self._unsent else 'answered'} in time",
            is_late=True,
        )

    def _make_error(self, what: str) -> GrpcError:
        return GrpcError(self._kind, self._path, what)

    def _make_protocol_error(self, what: str) -> GrpcError:
        return self._make_error(f"it violates the gRPC protocol: {what[:_MAX_TEXT]}")


def _decode_headers(headers: Iterable[tuple[str | bytes, str | bytes]] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers or ()}
