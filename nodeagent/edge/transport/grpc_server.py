"""Server for unary gRPC calls, based on h2. h2 takes megabytes of memory, so this module is imported only if
a gRPC service is configured.
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
"""Maximum size in bytes of a request's message. kubelet accepts 4 MiB, but a valid request contains no more than a pod's name."""
MAX_ANSWER_BYTES = 16 << 20
"""Maximum size in bytes of an answer's message. kubelet's clients have the same limit (DefaultPodResourcesMaxMsgSize)."""
MAX_STREAMS = 32
_SEND_BYTES = 256 * 1024
"""Maximum number of bytes sent at once, even if the client's flow control windows are larger."""

Method = Callable[[bytes], bytes]
"""Function that computes the answer's message from the request's message. It raises CallError to end the call with an error status."""
Headers = list[tuple[str, str]]

_OK: Headers = [(":status", "200"), ("content-type", CONTENT_TYPE)]


class _Request:
    __slots__ = ("body", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.body = bytearray()


class GrpcConnection:
    """Protocol state of one client's connection, without I/O: it is given received bytes, and returns bytes to send.

    Args:
        methods: methods by path, `/SERVICE/METHOD`.
        on_bug: function that is called with each exception of a method other than CallError. The client gets the status INTERNAL.
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
        """Incomplete requests, by stream."""
        self._answers: dict[int, memoryview] = {}
        """Part of each answer, by stream, that isn't sent yet because the client's flow control window is too small."""
        self._has_begun = False
        self.is_over = False

    @property
    def waits_for_client(self) -> bool:
        """Return whether the client's settings, the rest of a request, or room for an answer are awaited. If so, the client is subject to a
        timeout.
        """
        return not self._has_begun or bool(self._requests or self._answers)

    def receive(self, data: bytes) -> None:
        """Process received bytes. A protocol error ends the connection. Afterwards, send what `take_output` returns."""
        if not self._bound.allows(data):
            self._end()
            return
        try:
            events = self._h2.receive_data(data)
            complete: dict[int, _Request] = {}
            for event in events:
                self._handle(event, complete)
            for stream, request in complete.items():
                try:
                    answer = add_frame(self._call_method(request))
                except CallError as err:
                    headers = [*_OK, *_make_trailers(err.status, err.message)]
                    self._h2.send_headers(stream, headers, end_stream=True)
                else:
                    self._h2.send_headers(stream, _OK)
                    self._answers[stream] = memoryview(answer)
        except (H2Error, UnicodeDecodeError):
            self._end()

    def take_output(self) -> bytes:
        """Return the next bytes to send. Call this method repeatedly, and send each result, until the result is empty."""
        try:
            self._send_answers()
        except H2Error:
            self._end()
        return self._h2.data_to_send()

    def _handle(self, event: Event, complete: dict[int, _Request]) -> None:
        match event:
            case RequestReceived(stream_id=int(stream), headers=received):
                headers = {_decode(name): _decode(value) for name, value in received or ()}
                if headers.get(":method") != "POST":
                    self._refuse(stream, [(":status", "405")])
                elif not headers.get("content-type", "").startswith(CONTENT_TYPE):
                    self._refuse(stream, [(":status", "415")])
                else:
                    self._requests[stream] = _Request(headers.get(":path", ""))
            case DataReceived(stream_id=int(stream), data=data):
                self._h2.acknowledge_received_data(event.flow_controlled_length or 0, stream)
                request = self._requests.get(stream)
                if request is not None:
                    request.body += data or b""
                    if len(request.body) > MAX_REQUEST_BYTES:
                        del self._requests[stream]
                        text = f"the request has more than {MAX_REQUEST_BYTES} bytes"
                        self._refuse(stream, [*_OK, *_make_trailers(Status.RESOURCE_EXHAUSTED, text)])
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

    def _call_method(self, request: _Request) -> bytes:
        method = self._methods.get(request.path)
        if method is None:
            raise CallError(Status.UNIMPLEMENTED, f"there is no method {request.path}")
        message = remove_frame(bytes(request.body))
        try:
            answer = method(message)
        except CallError:
            raise
        except Exception as err:  # a bug in one method must not end the serving thread
            self._on_bug(err)
            raise CallError(Status.INTERNAL, "internal error, see the agent's log") from err
        if len(answer) > MAX_ANSWER_BYTES:
            text = f"the answer has {len(answer)} bytes, more than {MAX_ANSWER_BYTES}"
            raise CallError(Status.RESOURCE_EXHAUSTED, text)
        return answer

    def _refuse(self, stream: int, headers: Headers) -> None:
        """End a stream by sending these headers, without waiting for the rest of the request."""
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
                self._h2.send_headers(stream, _make_trailers(Status.OK), end_stream=True)

    def _end(self) -> None:
        self.is_over = True
        self._requests.clear()
        self._answers.clear()


def _make_trailers(status: Status, message: str = "") -> Headers:
    text = [("grpc-message", percent_encode(message))] if message else []
    return [("grpc-status", str(status.value)), *text]


def _decode(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode("latin-1")


class GrpcServer:
    """gRPC server. Its method `attend` serves one connection, as a `serving.Dialogue` requires."""

    bounds = Bounds(connections=16, request_bytes=64 * 1024, read_seconds=10.0, write_seconds=10.0)
    """Limits for all connections together and for each connection. An idle connection has no timeout."""

    def __init__(self, methods: Mapping[str, Method], on_bug: Callable[[Exception], None]) -> None:
        self._methods = methods
        self._on_bug = on_bug

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until the client or a protocol error ends the connection.

        Raises:
            OSError: the client has disconnected, or is too slow.
        """
        connection = GrpcConnection(self._methods, self._on_bug)
        writer.transport.set_write_buffer_limits(0)  # with limits of 0, drain waits until all bytes are sent
        while True:
            while data := connection.take_output():
                writer.write(data)
                async with asyncio.timeout(self.bounds.write_seconds):
                    await writer.drain()
            if connection.is_over:
                return
            async with asyncio.timeout(self.bounds.read_seconds if connection.waits_for_client else None):
                received = await reader.read(self.bounds.request_bytes)
            if not received:
                return
            connection.receive(received)
