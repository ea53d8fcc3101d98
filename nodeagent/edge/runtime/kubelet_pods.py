"""Calls of kubelet's pods API: gRPC with one request and one answer each, over a unix socket, by h2. Knows no messages but their frames.

h2 takes megabytes: it is loaded once there is somebody to ask.
"""

import os
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from nodeagent.errors import NodeAgentError
from nodeagent.formats.wire.grpc_messages import CONTENT_TYPE, Status, framed
from nodeagent.formats.wire.http2_frames import MAX_FRAME_BYTES, FrameBound

if TYPE_CHECKING:
    from h2.connection import H2Connection

_PIECE_BYTES = 16 * 1024
_MORE_BYTES = 64 * 1024
"""What may come beside the answers: heads of frames, headers, settings."""
_HEAD_BYTES = 5
"""Of a message: whether it is compressed, and its length."""
_MAX_TEXT = 300
_HINT = "is it kubelet's (1.37 or later)? `ss -lxp` shows whose; see `journalctl -u kubelet`"


class KubeletPodsError(NodeAgentError):
    """Kubelet's pods API can't be reached, or doesn't keep to the protocol. The connection is of no more use."""

    def __init__(
        self, path: Path, what: str, hint: str = _HINT, *, is_absent: bool = False, is_late: bool = False
    ) -> None:
        super().__init__(f"kubelet's pods API at {path}: {what}", hint=hint)
        self.is_absent = is_absent
        """There is no such socket."""
        self.is_late = is_late
        """It would have taken longer than there is time."""


def load() -> None:
    """Load h2 before there is a call."""
    import h2.connection  # noqa: F401, PLC0415 - that is what it is for


class KubeletPods:
    """One connection. Use it in `with`; one call after the other.

    Args:
        path: of the socket.
        until: when all of it has to be over, as of time.monotonic().
        max_bytes: of an answer's message.
    """

    def __init__(self, path: Path, until: float, max_bytes: int) -> None:
        self._path = path
        self._until = until
        self._max_bytes = max_bytes
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._h2: H2Connection | None = None
        self._bound = FrameBound()

    def __enter__(self) -> Self:
        """Raises KubeletPodsError."""
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

    def call(self, method: str, message: bytes, metadata: Iterable[tuple[str, str]] = ()) -> bytes | None:
        """Return the answer's message; None: what it asks for isn't there.

        Raises:
            KubeletPodsError: there is no answer, it refuses, or it can't be an answer.
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
                ("grpc-timeout", f"{max(1, int((self._until - time.monotonic()) * 1000))}m"),
                *metadata,
            ]
            self._h2.send_headers(stream, headers)
            self._h2.send_data(stream, framed(message), end_stream=True)
            status, text, body = self._answer(stream)
        except (H2Error, UnicodeDecodeError) as err:
            raise self._nonsense(str(err) or type(err).__name__) from err
        if status == Status.NOT_FOUND:
            return None
        if status != Status.OK:
            raise KubeletPodsError(self._path, f"it refuses: {text[:_MAX_TEXT]} ({status})")
        is_whole = len(body) >= _HEAD_BYTES and int.from_bytes(body[1:_HEAD_BYTES]) == len(body) - _HEAD_BYTES
        if not is_whole or body[0] != 0:
            raise self._nonsense("its answer is not one message without compression")
        return body[_HEAD_BYTES:]

    def _connect(self) -> None:
        try:
            # For connect: with Python's own timeout that would fail at once where the backlog is full (unix(7), EAGAIN).
            left = self._left()
            limit = struct.pack("ll", int(left), max(1, int(left % 1 * 1_000_000)))
            self._channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            self._channel.connect(os.fspath(self._path))
        except FileNotFoundError as err:
            raise KubeletPodsError(self._path, "there is no such socket", is_absent=True) from err
        except BlockingIOError as err:
            raise self._late() from err
        except OSError as err:
            raise KubeletPodsError(self._path, err.strerror or str(err)) from err
        from h2.config import H2Configuration  # noqa: PLC0415 - not before there is anybody
        from h2.connection import H2Connection  # noqa: PLC0415 - as above

        self._h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._h2.initiate_connection()

    def _answer(self, stream: int) -> tuple[int, str, bytes]:
        """Return a call's status, its text, and what came as its body."""
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
        while True:
            self._send(self._h2.data_to_send())
            data = self._receive()
            received += len(data)
            if not data:
                raise KubeletPodsError(self._path, "it closed the connection before it had answered")
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
                        return self._status(said), said.get("grpc-message", ""), bytes(body)
                    case StreamReset(stream_id=at) if at == stream:
                        raise self._nonsense("it broke the call off")
                    case ConnectionTerminated():
                        raise self._nonsense("it ended the connection")
                    case _:
                        pass

    def _status(self, said: dict[str, str]) -> int:
        text = said.get("grpc-status", "")
        if not text.isascii() or not text.isdigit() or len(text) > 3:
            raise self._nonsense("an answer without gRPC's status")
        return int(text)

    def _send(self, data: bytes) -> None:
        try:
            self._channel.settimeout(self._left())
            self._channel.sendall(data)
        except TimeoutError as err:
            raise self._late() from err
        except OSError as err:
            raise KubeletPodsError(self._path, err.strerror or str(err)) from err

    def _receive(self) -> bytes:
        try:
            self._channel.settimeout(self._left())
            return self._channel.recv(_PIECE_BYTES)
        except TimeoutError as err:
            raise self._late() from err
        except OSError as err:
            raise KubeletPodsError(self._path, err.strerror or str(err)) from err

    def _left(self) -> float:
        left = self._until - time.monotonic()
        if left <= 0:
            raise self._late()
        return left

    def _late(self) -> KubeletPodsError:
        hint = "it may be stopped or overloaded: `systemctl status kubelet`"
        return KubeletPodsError(self._path, "it has not answered in time", hint, is_late=True)

    def _nonsense(self, what: str) -> KubeletPodsError:
        return KubeletPodsError(self._path, f"it does not speak gRPC as it should: {what[:_MAX_TEXT]}")


def _texts(headers: Iterable[tuple[str | bytes, str | bytes]] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in headers or ()}
