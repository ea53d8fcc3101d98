"""One connection to a container runtime as its NRI plugin: registers, and answers the runtime's calls until one of them ends it.

Answering is the plugin's; whether to connect again, and when, is up to the caller. Runtime.UpdateContainers is never called
(formats/runtime).
"""

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
    NriContainer,
    Runtime,
    Sandbox,
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
    NriCallError,
    RuntimeCall,
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
"""Nobody waits that long for an answer: the runtime doesn't read any more."""
_PIECE_BYTES = 64 * 1024
_WAITING_PIECES = 16
"""Read but not looked at yet, while a call is being answered; then the runtime has to wait."""


class NriError(NodeAgentError):
    """The runtime can't be reached, has gone, or doesn't keep to the protocol. The connection has ended."""

    def __init__(self, path: Path, what: str, hint: str) -> None:
        super().__init__(f"cannot serve the container runtime at {path}: {what}", hint=hint)
        self.path = path


class Answered(Struct, frozen=True):
    """How long one call took."""

    method: str | None
    """None: one that there isn't."""
    took_seconds: float
    """From when it was read from the socket until its answer was written."""
    left_seconds: float
    """Until the runtime would have given up; below 0: it has, and goes on without the plugin."""
    code: int
    """A TtrpcCode."""


class Plugin(Protocol):
    """Who answers, in the thread that serves. `until` is when the runtime stops waiting, as of time.monotonic(): what comes later is lost,
    and the runtime goes on without this plugin for good.
    """

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int:
        """0 to 99."""
        ...

    @property
    def events(self) -> frozenset[Event]:
        """What to be called for. At least one that every version knows."""
        ...

    def configure(self, runtime: Runtime, /) -> None: ...
    def synchronize(self, known: Synchronized, until: float, /) -> tuple[Update, ...]:
        """Take what runs, before any other call, and return changes to it."""
        ...

    def handle(self, call: Call, until: float, /) -> Answer | Denial: ...
    def shut_down(self) -> None:
        """Take note that the runtime is about to end; what it runs goes on."""
        ...

    def note(self, answered: Answered) -> None:
        """Take note of an answer that is on its way."""
        ...


class _Phase(IntEnum):
    CONNECTED = 0
    CONFIGURED = 1
    SYNCHRONIZED = 2


class _Piece(NamedTuple):
    data: bytes
    """b"": the end."""
    arrived: float


class NriConnection:
    """Serves once. Used by one thread, but for `close`.

    Args:
        path: the runtime's socket.
        plugin: who answers.
        registration_seconds: how long to wait for the runtime to take the plugin and to configure it.
        send_seconds: how long to wait for the runtime to take what is sent.
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
        self._phase = _Phase.CONNECTED
        self._request_seconds = REQUEST_TIMEOUT_MS / 1000
        self._last_stream = 0
        self._sandboxes: list[Sandbox] = []
        self._containers: list[NriContainer] = []

    @property
    def is_synchronized(self) -> bool:
        """Whether the runtime has come as far as to make use of the plugin."""
        return self._phase is _Phase.SYNCHRONIZED

    def serve(self) -> None:
        """Connect, register, and answer until `close`.

        Raises:
            NriError: the runtime ended it, or gave a reason to.
        """
        try:
            with self._connected() as channel:
                self._channel = channel
                if not self._closed:
                    self._serve(channel)
        except NriError:
            if not self._closed:
                raise

    def close(self) -> None:
        """End it, from any thread. A call that is being answered gets no answer."""
        self._closed = True
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it has already ended by itself
                self._channel.shutdown(socket.SHUT_RDWR)

    def _serve(self, channel: socket.socket) -> None:
        pieces: Queue[_Piece] = Queue(_WAITING_PIECES)
        reader = threading.Thread(target=_read, args=(channel, pieces), name="nri-reader", daemon=True)
        reader.start()
        has_ended = False
        try:
            payload = encode_registration(self._plugin.name, self._plugin.index)
            request = TtrpcRequest(messages.RUNTIME, "RegisterPlugin", payload, timeout_ns=0)
            self._send(channel, RUNTIME_SERVICE, encode_request(1, request))
            self._take_all(channel, pieces)
            has_ended = True
        finally:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
            while not has_ended:  # the reader may wait for a place in the queue
                has_ended = not pieces.get().data
            reader.join()
        if not self._closed:
            raise self._gone()

    def _take_all(self, channel: socket.socket, pieces: "Queue[_Piece]") -> None:
        """Answer until the last piece has been taken."""
        reassembly = Reassembly()
        give_up = time.monotonic() + self._registration_seconds
        while (piece := self._next(pieces, give_up)).data:
            try:
                for connection, frame in reassembly.feed(piece.data):
                    if connection == PLUGIN_SERVICE:
                        self._take_from_runtime(channel, frame, piece.arrived)
                    else:
                        self._take_registration(frame)
            except MuxError as err:
                raise self._nonsense(str(err)) from err

    def _next(self, pieces: "Queue[_Piece]", give_up: float) -> _Piece:
        is_waiting = not self._registered or self._phase is _Phase.CONNECTED
        try:
            return pieces.get(timeout=max(0.0, give_up - time.monotonic()) if is_waiting else None)
        except Empty:
            raise NriError(
                self._path,
                f"it has not taken the plugin within {self._registration_seconds:g} s",
                "`systemctl status containerd`: it may be stopped or busy with another plugin; see `journalctl -u containerd`",
            ) from None

    def _take_registration(self, frame: TtrpcFrame) -> None:
        if frame.kind != TtrpcFrameType.RESPONSE or frame.stream != 1 or self._registered:
            raise self._nonsense(
                f"message {frame.kind} on stream {frame.stream}, where only RegisterPlugin is answered"
            )
        try:
            response = read_response(frame)
        except TtrpcError as err:
            raise self._nonsense(str(err)) from err
        if response.code != TtrpcCode.OK:
            raise NriError(
                self._path,
                f"it refuses the plugin: {response.message} ({response.code})",
                "see `journalctl -u containerd`: its configuration may not allow this plugin",
            )
        self._registered = True

    def _take_from_runtime(self, channel: socket.socket, frame: TtrpcFrame, arrived: float) -> None:
        if frame.kind != TtrpcFrameType.REQUEST:
            return  # of a stream, or of a kind that came later: as ttrpc's server does
        try:
            request = read_request(frame)
        except TtrpcError as err:
            self._send(channel, PLUGIN_SERVICE, encode_response(frame.stream, _invalid(str(err))))
            return
        until = arrived + (request.timeout_ns / 1e9 if request.timeout_ns else self._request_seconds)
        response = self._response(frame, request, until)
        message = encode_response(frame.stream, response)
        if len(message) > MAX_MESSAGE_BYTES:
            why = f"an answer of {len(message)} bytes, more than {MAX_MESSAGE_BYTES}"
            response = TtrpcResponse(code=TtrpcCode.RESOURCE_EXHAUSTED, message=why)
            message = encode_response(frame.stream, response)
        self._send(channel, PLUGIN_SERVICE, message)
        now = time.monotonic()
        method = request.method if request.method in METHODS else None
        self._plugin.note(Answered(method, now - arrived, until - now, response.code))

    def _response(self, frame: TtrpcFrame, request: TtrpcRequest, until: float) -> TtrpcResponse:
        if frame.stream % 2 == 0 or frame.stream <= self._last_stream:
            return _invalid(f"stream {frame.stream} after {self._last_stream}: they are odd and ascend")
        self._last_stream = frame.stream
        try:
            call = read_call(request.method, request.payload) if request.service == messages.PLUGIN else None
        except NriCallError as err:
            return _invalid(str(err))
        if call is None or frame.flags:
            what = f"{request.service}/{request.method}, flags {frame.flags}"
            return TtrpcResponse(code=TtrpcCode.UNIMPLEMENTED, message=f"there is no {what:.200}")
        return self._carry_out(call, until)

    def _carry_out(self, call: RuntimeCall, until: float) -> TtrpcResponse:
        match call:
            case Configure(runtime):
                self._request_seconds = runtime.request_timeout_ms / 1000
                self._plugin.configure(runtime)
                self._phase = max(self._phase, _Phase.CONFIGURED)
                return TtrpcResponse(encode_subscription(self._plugin.events, runtime))
            case Shutdown():
                self._plugin.shut_down()
                return TtrpcResponse()
            case Synchronize() if self._phase >= _Phase.CONFIGURED:
                return self._synchronize(call, until)
            case Call(event) if self._phase >= _Phase.SYNCHRONIZED:
                answer = self._plugin.handle(call, until)
                if isinstance(answer, Denial):
                    return TtrpcResponse(code=TtrpcCode.FAILED_PRECONDITION, message=answer.reason)
                return TtrpcResponse(encode_answer(event, answer))
            case _:
                return TtrpcResponse(
                    code=TtrpcCode.FAILED_PRECONDITION, message=f"not before {_Phase(self._phase + 1).name.lower()}"
                )

    def _synchronize(self, call: Synchronize, until: float) -> TtrpcResponse:
        self._sandboxes += call.part.sandboxes
        self._containers += call.part.containers
        if len(self._sandboxes) + len(self._containers) > MAX_SYNCHRONIZED:
            raise self._nonsense(f"over all parts more than {MAX_SYNCHRONIZED} pods and containers")
        if call.has_more:
            return TtrpcResponse(encode_request_for_more())
        known = Synchronized(tuple(self._sandboxes), tuple(self._containers))
        self._sandboxes.clear()
        self._containers.clear()
        updates = self._plugin.synchronize(known, until)
        self._phase = _Phase.SYNCHRONIZED
        return TtrpcResponse(encode_synchronized(updates))

    def _connected(self) -> socket.socket:
        channel = None
        try:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            # For connect, too. With Python's own timeout that would fail at once where the backlog is full (unix(7), EAGAIN).
            limit = struct.pack("ll", int(self._send_seconds), int(self._send_seconds % 1 * 1_000_000))
            channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            channel.connect(os.fspath(self._path))
        except OSError as err:
            if channel is not None:
                channel.close()
            raise self._unreachable(err) from err
        return channel

    def _send(self, channel: socket.socket, connection: int, message: bytes) -> None:
        try:
            channel.sendall(encode_frames(connection, message))
        except OSError as err:
            raise self._unreachable(err) from err

    def _unreachable(self, err: OSError) -> NriError:
        if isinstance(err, BrokenPipeError | ConnectionResetError):
            return self._gone()
        if isinstance(err, BlockingIOError):
            return NriError(
                self._path,
                f"it has not taken what was sent within {self._send_seconds:g} s",
                "`systemctl status containerd`: it may be stopped or overloaded; see `journalctl -u containerd`",
            )
        return NriError(
            self._path,
            err.strerror or str(err),
            'is it running (`systemctl status containerd`), with NRI on (`disable = false` in [plugins."io.containerd.nri.v1.nri"])?',
        )

    def _gone(self) -> NriError:
        return NriError(
            self._path,
            "it closed the connection",
            "see `journalctl -u containerd`: it has ended, or has given the plugin up for a late or wrong answer",
        )

    def _nonsense(self, what: str) -> NriError:
        return NriError(
            self._path,
            f"it does not speak NRI: {what}",
            "is it the socket of containerd or CRI-O? `ss -lxp` shows whose; if so, please report it with its version",
        )


def _read(channel: socket.socket, pieces: "Queue[_Piece]") -> None:
    """Note when things arrive, however long the call before them takes. Ends with an empty piece, whatever happens."""
    data = b"x"
    while data:
        try:
            data = channel.recv(_PIECE_BYTES)
        except OSError:
            data = b""
        pieces.put(_Piece(data, time.monotonic()))


def _invalid(what: str) -> TtrpcResponse:
    return TtrpcResponse(code=TtrpcCode.INVALID_ARGUMENT, message=what)
