"""A gRPC server for calls with one request and one answer, by h2. Knows no messages but their frames, and no sockets.

Loaded only where something is served by it: h2 takes megabytes.
"""

import asyncio
from collections.abc import Callable, Mapping

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
)
from h2.exceptions import H2Error
from h2.settings import SettingCodes, Settings

from nodeagent.formats.wire.exchange import Bounds
from nodeagent.formats.wire.grpc_messages import (
    CONTENT_TYPE,
    CallError,
    Status,
    add_frame,
    percent_encode,
    remove_frame,
)
from nodeagent.formats.wire.http2_frames import PREFACE, FrameBound

MAX_REQUEST_BYTES = 4096
"""Of one call. A kubelet takes 4 MiB, for messages that name one pod."""
MAX_ANSWER_BYTES = 16 << 20
"""Clients are told to take no more (kubelet's DefaultPodResourcesMaxMsgSize)."""
MAX_STREAMS = 32
_SEND_BYTES = 256 * 1024
"""What is taken from the answers at once, however far the client has opened its windows."""

Method = Callable[[bytes], bytes]
"""Takes a request's message and returns the answer's; a CallError is the call's status."""
Headers = list[tuple[str, str]]

_OK: Headers = [(":status", "200"), ("content-type", CONTENT_TYPE)]


class _Request:
    """One that is arriving."""

    __slots__ = ("body", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.body = bytearray()


class GrpcConnection:
    """One client's connection, as bytes in and bytes out.

    Args:
        methods: by path, `/SERVICE/METHOD`.
        on_bug: called with what a method raised that is no CallError; its client gets INTERNAL.
    """

    def __init__(self, methods: Mapping[str, Method], on_bug: Callable[[Exception], None]) -> None:
        self._methods = methods
        self._on_bug = on_bug
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._h2.local_settings = Settings(
            client=False, initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS}
        )
        self._h2.initiate_connection()
        self._bound = FrameBound(len(PREFACE))
        self._requests: dict[int, _Request] = {}
        """Arriving, by stream."""
        self._answers: dict[int, memoryview] = {}
        """What is left to send of each; they wait for the client's window."""
        self._has_begun = False
        self.is_over = False

    @property
    def owes(self) -> bool:
        """Whether the client has to do something: begin, finish a request, or take an answer."""
        return not self._has_begun or bool(self._requests or self._answers)

    def receive(self, data: bytes) -> None:
        """Take in what the client sent. What it gets for it is in `to_send`; after an error of its own the connection is over."""
        if not self._bound.allows(data):
            self._end()
            return
        try:
            events = self._h2.receive_data(data)
            complete: dict[int, _Request] = {}
            for event in events:
                self._take(event, complete)
            for stream, request in complete.items():
                self._call(stream, request)
        except (H2Error, UnicodeDecodeError):
            self._end()

    def to_send(self) -> bytes:
        """Return what has to be sent now; call it again once that is sent, until there is nothing."""
        try:
            self._send_answers()
        except H2Error:
            self._end()
        return self._h2.data_to_send()

    def _take(self, event: Event, complete: dict[int, _Request]) -> None:
        match event:
            case RequestReceived(stream_id=int(stream), headers=headers):
                self._open(stream, {_text(name): _text(value) for name, value in headers or ()})
            case DataReceived(stream_id=int(stream), data=data):
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                request = self._requests.get(stream)
                if request is not None:
                    request.body += data or b""
                    if len(request.body) > MAX_REQUEST_BYTES:
                        del self._requests[stream]
                        text = f"the request has more than {MAX_REQUEST_BYTES} bytes"
                        self._refuse(stream, [*_OK, *_trailers(Status.RESOURCE_EXHAUSTED, text)])
            case StreamEnded(stream_id=int(stream)) if stream in self._requests:
                complete[stream] = self._requests.pop(stream)
            case StreamReset(stream_id=int(stream)):
                for waiting in (self._requests, complete, self._answers):
                    waiting.pop(stream, None)
            case RemoteSettingsChanged():
                self._has_begun = True
            case ConnectionTerminated():
                self._end()
            case _:
                pass

    def _open(self, stream: int, headers: Mapping[str, str]) -> None:
        content_type = headers.get("content-type", "")
        if headers.get(":method") != "POST":
            self._refuse(stream, [(":status", "405")])
        elif not content_type.startswith(CONTENT_TYPE):
            self._refuse(stream, [(":status", "415")])
        else:
            self._requests[stream] = _Request(headers.get(":path", ""))

    def _call(self, stream: int, request: _Request) -> None:
        try:
            answer = add_frame(self._answer(request))
        except CallError as err:
            self._h2.send_headers(stream, [*_OK, *_trailers(err.status, err.message)], end_stream=True)
            return
        self._h2.send_headers(stream, _OK)
        self._answers[stream] = memoryview(answer)

    def _answer(self, request: _Request) -> bytes:
        method = self._methods.get(request.path)
        if method is None:
            raise CallError(Status.UNIMPLEMENTED, f"there is no method {request.path}")
        message = remove_frame(bytes(request.body))
        try:
            answer = method(message)
        except CallError:
            raise
        except Exception as err:  # a bug in one answer must not end the connection of all others
            self._on_bug(err)
            raise CallError(Status.INTERNAL, "internal error, see the agent's log") from err
        if len(answer) > MAX_ANSWER_BYTES:
            text = f"the answer has {len(answer)} bytes, more than {MAX_ANSWER_BYTES}"
            raise CallError(Status.RESOURCE_EXHAUSTED, text)
        return answer

    def _refuse(self, stream: int, headers: Headers) -> None:
        """Answer without waiting for the rest of the request."""
        self._h2.send_headers(stream, headers, end_stream=True)
        self._h2.reset_stream(stream, ErrorCodes.NO_ERROR)

    def _send_answers(self) -> None:
        room = _SEND_BYTES
        for stream in tuple(self._answers):
            while left := self._answers[stream]:
                window = self._h2.local_flow_control_window(stream)
                size = min(window, self._h2.max_outbound_frame_size, len(left), room)
                if size <= 0:
                    break
                self._h2.send_data(stream, left[:size].tobytes())
                self._answers[stream] = left[size:]
                room -= size
            if not left:
                del self._answers[stream]
                self._h2.send_headers(stream, _trailers(Status.OK), end_stream=True)

    def _end(self) -> None:
        self.is_over = True
        self._requests.clear()
        self._answers.clear()


def _trailers(status: Status, message: str = "") -> Headers:
    text = [("grpc-message", percent_encode(message))] if message else []
    return [("grpc-status", str(status.value)), *text]


def _text(word: str | bytes) -> str:
    return word if isinstance(word, str) else word.decode("latin-1")


class GrpcServer:
    """What `serving.Dialogue` attends by."""

    bounds = Bounds(connections=16, request_bytes=64 * 1024, read_seconds=10.0, write_seconds=10.0)
    """An idle connection may stay; one that owes something has to go on."""

    def __init__(self, methods: Mapping[str, Method], on_bug: Callable[[Exception], None]) -> None:
        self._methods = methods
        self._on_bug = on_bug

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak with one client until one of the two ends it.

        Raises:
            OSError: the client is gone, or too slow.
        """
        connection = GrpcConnection(self._methods, self._on_bug)
        writer.transport.set_write_buffer_limits(0)  # so that drain waits for the last byte
        while True:
            while data := connection.to_send():
                writer.write(data)
                async with asyncio.timeout(self.bounds.write_seconds):
                    await writer.drain()
            if connection.is_over:
                return
            async with asyncio.timeout(self.bounds.read_seconds if connection.owes else None):
                received = await reader.read(self.bounds.request_bytes)
            if not received:
                return
            connection.receive(received)
