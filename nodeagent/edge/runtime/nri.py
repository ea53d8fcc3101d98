"""Connection to a container runtime as an NRI plugin: registers the plugin, and answers the runtime's calls."""

import contextlib
import os
import socket
import struct
import threading
import time
from enum import IntEnum
from pathlib import Path
from queue import Empty, Queue
from typing import NamedTuple, Protocol

from msgspec import Struct

from nodeagent.core.model.nri import (
    Answer,
    Call,
    Denial,
    Event,
    Runtime,
    Synchronized,
    Update,
)
from nodeagent.errors import NodeAgentError
from nodeagent.formats.runtime import messages
from nodeagent.formats.runtime.calls import (
    MAX_SYNCHRONIZED,
    METHODS,
    REGISTRATION_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    Configure,
    NriPayloadError,
    Shutdown,
    Synchronize,
    encode_answer,
    encode_registration,
    encode_request_for_more,
    encode_subscription,
    encode_synchronized,
    read_call,
)
from nodeagent.formats.runtime.mux import (
    MAX_MESSAGE_BYTES,
    PLUGIN_SERVICE,
    RUNTIME_SERVICE,
    MuxError,
    Reassembly,
    encode_frames,
)
from nodeagent.formats.runtime.ttrpc import (
    TtrpcCode,
    TtrpcError,
    TtrpcFrame,
    TtrpcFrameType,
    TtrpcRequest,
    TtrpcResponse,
    encode_request,
    encode_response,
    read_request,
    read_response,
)

DEFAULT_SOCKET = Path("/var/run/nri/nri.sock")
SEND_SECONDS = 5.0
"""Timeout of a write in seconds. A runtime that reads nothing for this long has given up waiting for answers."""
_PIECE_BYTES = 64 * 1024
_WAITING_PIECES = 16
"""Maximum number of pieces of data that are received in advance, while a call is being answered."""


class NriError(NodeAgentError):
    """The container runtime can't be reached, has closed the connection, or doesn't follow the NRI protocol."""

    def __init__(self, path: Path, reason: str, hint: str) -> None:
        super().__init__(f"cannot serve the container runtime at {path}: {reason}", hint=hint)
        self.path = path


class Answered(Struct, frozen=True):
    """Statistics of a call that was answered."""

    method: str | None
    """Name of the called method. None means that NRI doesn't define the method."""
    took_seconds: float
    """Seconds from receiving the call to writing the answer."""
    left_seconds: float
    """Seconds left until the runtime's timeout. A negative number means that the answer was late; the runtime then drops the plugin."""
    code: int
    """Status code of the answer (TtrpcCode)."""


class Plugin(Protocol):
    """Interface of an NRI plugin. The thread of `NriConnection.serve` calls its methods.

    The argument `until` is the time, in seconds of time.monotonic(), by which the runtime must have the answer. If an answer is late, the
    runtime drops this connection of the plugin.
    """

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int:
        """Return the plugin's position, from 0 to 99, in the order in which the runtime calls its plugins."""

    @property
    def events(self) -> frozenset[Event]:
        """Return the events to which the plugin subscribes. At least one must exist in every version of NRI, because a runtime rejects an
        empty subscription.
        """

    def configure(self, runtime: Runtime, /) -> None: ...
    def synchronize(self, known: Synchronized, until: float, /) -> tuple[Update, ...]:
        """Receive the pods and containers that exist when the plugin connects. Return changes of the containers. No event is sent before
        this call.
        """

    def handle(self, call: Call, until: float, /) -> Answer | Denial: ...
    def shut_down(self) -> None:
        """Handle the runtime's notice that it is about to exit. Its containers keep running."""

    def note(self, answered: Answered) -> None:
        """Record an answer after it was sent."""


class _Phase(IntEnum):
    CONNECTED = 0
    CONFIGURED = 1
    SYNCHRONIZED = 2


class _Piece(NamedTuple):
    data: bytes
    """Received bytes. Empty at the end of the connection."""
    arrived: float


class _NriCalls:
    """Handler of the runtime's calls, which must arrive in the order that NRI prescribes."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self.phase = _Phase.CONNECTED
        self.timeout_seconds = REQUEST_TIMEOUT_MS / 1000
        """Timeout in seconds of calls that don't contain a timeout."""
        self._last_stream = 0
        self._listed = Synchronized()
        """Pods and containers listed so far. A long list arrives in several Synchronize calls."""

    def answer(self, frame: TtrpcFrame, request: TtrpcRequest, until: float) -> TtrpcResponse:
        """Answer one of the runtime's calls.

        Raises:
            MuxError: the runtime lists too many pods and containers.
        """
        if frame.stream % 2 == 0 or frame.stream <= self._last_stream:
            return _make_invalid_argument(
                f"stream {frame.stream} after {self._last_stream}: streams must be odd and ascend"
            )
        self._last_stream = frame.stream
        try:
            call = read_call(request.method, request.payload) if request.service == messages.PLUGIN else None
        except NriPayloadError as err:
            return _make_invalid_argument(str(err))
        if call is None or frame.flags:
            method = f"{request.service}/{request.method} with flags {frame.flags}"
            return TtrpcResponse(code=TtrpcCode.UNIMPLEMENTED, message=f"there is no {method:.200}")
        match call:
            case Configure(runtime):
                self.timeout_seconds = runtime.request_timeout_ms / 1000
                self._plugin.configure(runtime)
                self.phase = max(self.phase, _Phase.CONFIGURED)
                return TtrpcResponse(encode_subscription(self._plugin.events, runtime))
            case Shutdown():
                self._plugin.shut_down()
                return TtrpcResponse()
            case Synchronize() if self.phase >= _Phase.CONFIGURED:
                return self._synchronize(call, until)
            case Call(event) if self.phase >= _Phase.SYNCHRONIZED:
                answer = self._plugin.handle(call, until)
                if isinstance(answer, Denial):
                    return TtrpcResponse(code=TtrpcCode.FAILED_PRECONDITION, message=answer.reason)
                return TtrpcResponse(encode_answer(event, answer))
            case _:
                return TtrpcResponse(
                    code=TtrpcCode.FAILED_PRECONDITION,
                    message=f"the plugin is not {_Phase(self.phase + 1).name.lower()} yet",
                )

    def _synchronize(self, call: Synchronize, until: float) -> TtrpcResponse:
        known = Synchronized(
            self._listed.sandboxes + call.part.sandboxes, self._listed.containers + call.part.containers
        )
        if len(known.sandboxes) + len(known.containers) > MAX_SYNCHRONIZED:
            raise MuxError(f"all parts of Synchronize together list more than {MAX_SYNCHRONIZED} pods and containers")
        if call.has_more:
            self._listed = known
            return TtrpcResponse(encode_request_for_more())
        self._listed = Synchronized()
        updates = self._plugin.synchronize(known, until)
        self.phase = _Phase.SYNCHRONIZED
        return TtrpcResponse(encode_synchronized(updates))


class NriConnection:
    """Connection to the runtime, for a single call of `serve`. Only `close` may be called from another thread.

    Args:
        path: path of the runtime's socket.
        plugin: plugin that answers the calls.
        registration_seconds: seconds within which the runtime must accept and configure the plugin.
        send_seconds: timeout of each write.
    """

    def __init__(
        self,
        path: Path,
        plugin: Plugin,
        *,
        registration_seconds: float = REGISTRATION_TIMEOUT_MS / 1000,
        send_seconds: float = SEND_SECONDS,
    ) -> None:
        self._path = path
        self._plugin = plugin
        self._registration_seconds = registration_seconds
        self._send_seconds = send_seconds
        self._channel: socket.socket | None = None
        self._closed = False
        self._registered = False
        self._calls = _NriCalls(plugin)

    @property
    def is_synchronized(self) -> bool:
        """Return whether the runtime has listed its containers. Only afterwards does it send events."""
        return self._calls.phase is _Phase.SYNCHRONIZED

    def serve(self) -> None:
        """Connect to the runtime, register the plugin, and answer calls until `close` is called.

        Raises:
            NriError: the connection failed, the runtime closed it, or the runtime doesn't follow the protocol.
        """
        try:
            with self._connect() as channel:
                self._channel = channel
                if not self._closed:
                    self._serve(channel)
        except NriError:
            if not self._closed:
                raise

    def close(self) -> None:
        """End the connection. A call that is being answered gets no answer. Any thread may call this method."""
        self._closed = True
        if self._channel is not None:
            with contextlib.suppress(OSError):  # the connection has already ended
                self._channel.shutdown(socket.SHUT_RDWR)

    def _serve(self, channel: socket.socket) -> None:
        pieces: Queue[_Piece] = Queue(_WAITING_PIECES)
        reader = threading.Thread(target=_read_pieces, args=(channel, pieces), name="nri-reader", daemon=True)
        reader.start()
        has_ended = False
        try:
            payload = encode_registration(self._plugin.name, self._plugin.index)
            request = TtrpcRequest(messages.RUNTIME, "RegisterPlugin", payload, timeout_ns=0)
            self._send(channel, RUNTIME_SERVICE, encode_request(1, request))
            self._handle_pieces(channel, pieces)
            has_ended = True
        finally:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
            while not has_ended:  # the queue is emptied, because the reader may be waiting for room in it
                has_ended = not pieces.get().data
            reader.join()
        if not self._closed:
            raise self._make_closed_error()

    def _handle_pieces(self, channel: socket.socket, pieces: "Queue[_Piece]") -> None:
        reassembly = Reassembly()
        registered_until = time.monotonic() + self._registration_seconds
        while True:
            is_waiting = not self._registered or self._calls.phase is _Phase.CONNECTED
            try:
                data, arrived = pieces.get(
                    timeout=max(0.0, registered_until - time.monotonic()) if is_waiting else None
                )
            except Empty:
                raise NriError(
                    self._path,
                    f"it has not accepted the plugin within {self._registration_seconds:g} s",
                    "`systemctl status containerd`: it may be stopped or busy with another plugin; see `journalctl -u containerd`",
                ) from None
            if not data:
                return
            try:
                for connection, frame in reassembly.feed(data):
                    if connection == PLUGIN_SERVICE:
                        self._handle_call(channel, frame, arrived)
                    else:
                        self._handle_registration(frame)
            except MuxError as err:
                raise self._make_protocol_error(str(err)) from err

    def _handle_registration(self, frame: TtrpcFrame) -> None:
        if frame.kind != TtrpcFrameType.RESPONSE or frame.stream != 1 or self._registered:
            raise self._make_protocol_error(
                f"unexpected message {frame.kind} on stream {frame.stream}: only RegisterPlugin is answered there"
            )
        try:
            response = read_response(frame)
        except TtrpcError as err:
            raise self._make_protocol_error(str(err)) from err
        if response.code != TtrpcCode.OK:
            raise NriError(
                self._path,
                f"it refuses the plugin: {response.message} ({response.code})",
                "see `journalctl -u containerd`: its configuration may not allow this plugin",
            )
        self._registered = True

    def _handle_call(self, channel: socket.socket, frame: TtrpcFrame, arrived: float) -> None:
        if frame.kind != TtrpcFrameType.REQUEST:
            return  # other kinds of messages are ignored, as in ttrpc's own server
        try:
            request = read_request(frame)
        except TtrpcError as err:
            self._send(channel, PLUGIN_SERVICE, encode_response(frame.stream, _make_invalid_argument(str(err))))
            return
        until = arrived + (request.timeout_ns / 1e9 if request.timeout_ns else self._calls.timeout_seconds)
        response = self._calls.answer(frame, request, until)
        message = encode_response(frame.stream, response)
        if len(message) > MAX_MESSAGE_BYTES:
            reason = f"an answer of {len(message)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}"
            response = TtrpcResponse(code=TtrpcCode.RESOURCE_EXHAUSTED, message=reason)
            message = encode_response(frame.stream, response)
        self._send(channel, PLUGIN_SERVICE, message)
        now = time.monotonic()
        method = request.method if request.method in METHODS else None
        self._plugin.note(Answered(method, now - arrived, until - now, response.code))

    def _connect(self) -> socket.socket:
        channel = None
        try:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            # With settimeout, connect would fail at once while the backlog is full (unix(7), EAGAIN).
            timeval = struct.pack("ll", int(self._send_seconds), int(self._send_seconds % 1 * 1_000_000))
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            channel.connect(os.fspath(self._path))
        except OSError as err:
            if channel is not None:
                channel.close()
            raise self._make_error(err) from err
        return channel

    def _send(self, channel: socket.socket, connection: int, message: bytes) -> None:
        try:
            channel.sendall(encode_frames(connection, message))
        except OSError as err:
            raise self._make_error(err) from err

    def _make_error(self, err: OSError) -> NriError:
        if isinstance(err, BrokenPipeError | ConnectionResetError):
            return self._make_closed_error()
        if isinstance(err, BlockingIOError):
            reason = f"it has not read an answer within {self._send_seconds:g} s"
            hint = "`systemctl status containerd`: it may be stopped or overloaded; see `journalctl -u containerd`"
        else:
            reason = err.strerror or str(err)
            hint = 'is it running (`systemctl status containerd`), with NRI on (`disable = false` in [plugins."io.containerd.nri.v1.nri"])?'
        return NriError(self._path, reason, hint)

    def _make_closed_error(self) -> NriError:
        return NriError(
            self._path,
            "it closed the connection",
            "see `journalctl -u containerd`: it has ended, or has dropped the plugin after a late or wrong answer",
        )

    def _make_protocol_error(self, reason: str) -> NriError:
        return NriError(
            self._path,
            f"it does not speak NRI: {reason}",
            "`ss -lxp` shows the program that listens; if it is containerd or CRI-O, please report this with its version",
        )


def _read_pieces(channel: socket.socket, pieces: "Queue[_Piece]") -> None:
    """Read data until the connection ends, and queue each piece with its time of arrival. This continues while a call is being answered, so
    that the time is correct.
    """
    data = b"x"
    while data:
        try:
            data = channel.recv(_PIECE_BYTES)
        except OSError:
            data = b""
        pieces.put(_Piece(data, time.monotonic()))


def _make_invalid_argument(reason: str) -> TtrpcResponse:
    return TtrpcResponse(code=TtrpcCode.INVALID_ARGUMENT, message=reason)
