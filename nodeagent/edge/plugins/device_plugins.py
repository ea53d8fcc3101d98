"""Calls of a device plugin: gRPC over its unix socket, by h2. Knows no messages but their frames.

Answers come one by one: a call has one, and ListAndWatch has any number, until the plugin ends. Loaded only where plugins may register.
"""

import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

from nodeagent.errors import NodeAgentError
from nodeagent.formats.wire.grpc_messages import CONTENT_TYPE, Status, framed
from nodeagent.formats.wire.http2_frames import MAX_FRAME_BYTES, FrameBound

MAX_MESSAGE_BYTES = 4 << 20
"""gRPC's own bound of what is received, which kubelet has, too."""
_PIECE_BYTES = 64 * 1024
_HEAD_BYTES = 5
"""Of a message: whether it is compressed, and its length."""
_MAX_TEXT = 300
_CLOCKS_DIFFER_SECONDS = 0.05
"""Between our end of a call, and what the plugin makes of the milliseconds that it was told."""
_HINT = "see the plugin's log (`journalctl`), and restart it: it registers again then"


class DevicePluginError(NodeAgentError):
    """A plugin can't be reached, refuses, or doesn't keep to the protocol."""

    def __init__(self, path: Path, what: str, *, is_late: bool = False, is_refusal: bool = False) -> None:
        super().__init__(f"device plugin at {path}: {what}", hint=_HINT)
        self.what = what
        self.is_late = is_late
        """It would have taken longer than there is time."""
        self.is_refusal = is_refusal
        """It has answered, with a status that isn't OK."""


class DevicePluginConnection:
    """One connection, for one call. Use it in `with`.

    Args:
        path: of the socket.
        until: when the call has to be over, as of time.monotonic(). None: whenever the plugin ends it.
    """

    def __init__(self, path: Path, until: float | None) -> None:
        self._path = path
        self._until = until
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._bound = FrameBound()
        self._said: dict[str, str] = {}
        self._is_over = False

    def __enter__(self) -> Self:
        """Raises DevicePluginError."""
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
        """End it from another thread: whoever waits for an answer gets an error."""
        try:
            self._channel.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is closed, or was never connected

    def call(self, method: str, message: bytes) -> bytes:
        """Return the answer's message.

        Raises:
            DevicePluginError: there is none.
        """
        answers = list(self.watch(method, message))
        if len(answers) != 1:
            raise self._nonsense(f"{len(answers)} answers to one call")
        return answers[0]

    def watch(self, method: str, message: bytes) -> Iterator[bytes]:
        """Yield each answer's message as it comes, until the plugin has ended the call well.

        Raises:
            DevicePluginError: it ends otherwise.
        """
        try:
            stream = self._h2.get_next_available_stream_id()
            headers = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", method),
                (":authority", "localhost"),
                ("te", "trailers"),
                ("content-type", CONTENT_TYPE),
            ]
            if self._until is not None:
                headers.append(("grpc-timeout", f"{max(1, int(self._left() * 1000))}m"))
            self._h2.send_headers(stream, headers)
            self._h2.send_data(stream, framed(message), end_stream=True)
            yield from self._answers(stream)
        except (H2Error, UnicodeDecodeError) as err:
            raise self._nonsense(str(err) or type(err).__name__) from err

    def _connect(self) -> None:
        try:
            left = 1.0 if self._until is None else self._left()
            # For connect: with Python's own timeout that would fail at once where the backlog is full (unix(7), EAGAIN).
            limit = struct.pack("ll", int(left), max(1, int(left % 1 * 1_000_000)))
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._channel.connect(os.fspath(self._path))
        except BlockingIOError as err:
            raise self._late() from err
        except OSError as err:
            raise DevicePluginError(self._path, err.strerror or str(err)) from err
        self._h2.initiate_connection()

    def _answers(self, stream: int) -> Iterator[bytes]:
        body = bytearray()
        while not self._is_over:
            self._send(self._h2.data_to_send())
            data = self._receive()
            if not data:
                raise DevicePluginError(self._path, "it closed the connection")
            if not self._bound.allows(data):
                raise self._nonsense(f"a frame of more than {MAX_FRAME_BYTES} bytes")
            for event in self._h2.receive_data(data):
                self._take(event, stream, body)
            while (found := self._message(body)) is not None:
                yield found
        status, text = self._said.get("grpc-status", ""), self._said.get("grpc-message", "")
        if not text.isascii() or not status.isdigit():
            raise self._nonsense("an answer without gRPC's status")
        if int(status) == Status.DEADLINE_EXCEEDED and self._is_time_up():
            raise self._late()  # the plugin's gRPC has said so, a moment before we would have
        if int(status) != Status.OK:
            raise DevicePluginError(self._path, f"it refuses: {text[:_MAX_TEXT]} ({status})", is_refusal=True)
        if body:
            raise self._nonsense("an answer without its end")

    def _take(self, event: Event, stream: int, body: bytearray) -> None:
        match event:
            case ResponseReceived(stream_id=at, headers=headers) if at == stream:
                self._said |= _texts(headers)
                if self._said.get(":status") != "200":
                    raise self._nonsense(f"it answers with HTTP's status {self._said.get(':status')}")
            case TrailersReceived(stream_id=at, headers=headers) if at == stream:
                self._said |= _texts(headers)
            case DataReceived(stream_id=at, data=piece) if at == stream:
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                body += piece or b""
                if len(body) > MAX_MESSAGE_BYTES + _HEAD_BYTES:
                    raise self._nonsense(f"an answer of more than {MAX_MESSAGE_BYTES} bytes")
            case StreamEnded(stream_id=at) if at == stream:
                self._is_over = True
            case StreamReset(stream_id=at) if at == stream:
                raise self._nonsense("it broke the call off")
            case ConnectionTerminated():
                raise DevicePluginError(self._path, "it ended the connection")
            case _:
                pass

    def _message(self, body: bytearray) -> bytes | None:
        """Take the first whole message from what has come."""
        if len(body) < _HEAD_BYTES:
            return None
        if body[0] != 0:
            raise self._nonsense("a compressed answer")
        size = int.from_bytes(body[1:_HEAD_BYTES])
        if size > MAX_MESSAGE_BYTES:
            raise self._nonsense(f"an answer of more than {MAX_MESSAGE_BYTES} bytes")
        if len(body) < _HEAD_BYTES + size:
            return None
        found = bytes(body[_HEAD_BYTES : _HEAD_BYTES + size])
        del body[: _HEAD_BYTES + size]
        return found

    def _send(self, data: bytes) -> None:
        try:
            self._channel.settimeout(None if self._until is None else self._left())
            self._channel.sendall(data)
        except TimeoutError as err:
            raise self._late() from err
        except OSError as err:
            raise DevicePluginError(self._path, err.strerror or str(err)) from err

    def _receive(self) -> bytes:
        try:
            self._channel.settimeout(None if self._until is None else self._left())
            return self._channel.recv(_PIECE_BYTES)
        except TimeoutError as err:
            raise self._late() from err
        except OSError as err:
            raise DevicePluginError(self._path, err.strerror or str(err)) from err

    def _left(self) -> float:
        assert self._until is not None
        left = self._until - time.monotonic()
        if left <= 0:
            raise self._late()
        return left

    def _is_time_up(self) -> bool:
        return self._until is not None and time.monotonic() > self._until - _CLOCKS_DIFFER_SECONDS

    def _late(self) -> DevicePluginError:
        return DevicePluginError(self._path, "it has not answered in time", is_late=True)

    def _nonsense(self, what: str) -> DevicePluginError:
        return DevicePluginError(self._path, f"it does not speak gRPC as it should: {what[:_MAX_TEXT]}")


def _texts(headers: Iterable[tuple[str | bytes, str | bytes]] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers or ()}
