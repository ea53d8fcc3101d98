"""The gRPC server with grpcio's client, with one that speaks HTTP/2 frame by frame, and with clients that speak nonsense."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import h2.connection
import h2.events
import h2.settings
import msgspec
import pytest
from hypothesis import given, strategies as st

from nodeagent.edge.transport import grpc_server
from nodeagent.edge.transport.grpc_server import MAX_REQUEST_BYTES, MAX_STREAMS, GrpcConnection, GrpcServer
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.serving import Dialogue, Server, ServingThread
from nodeagent.formats.syntax.bind_address import UnixAddress
from nodeagent.formats.wire.grpc_messages import CallError, Status, add_frame

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test/Echo"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc+proto"),
]


def large(message: bytes) -> bytes:
    return b"x" * int(message)


def refuse(_: bytes) -> bytes:
    raise CallError(Status.UNKNOWN, "no pod 'ü' at 100%\n")


def crash(_: bytes) -> bytes:
    raise KeyError("secret")


METHODS = {"/test/Echo": bytes, "/test/Large": large, "/test/Refuse": refuse, "/test/Crash": crash}


class Client:
    """Speaks HTTP/2 with a GrpcConnection, without sockets."""

    def __init__(self, *, window: int = 65_535) -> None:
        self.bugs: list[Exception] = []
        self.server = GrpcConnection(METHODS, self.bugs.append)
        self.h2 = h2.connection.H2Connection()
        self.h2.local_settings = h2.settings.Settings(
            initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window}
        )
        self.h2.initiate_connection()
        self.headers: dict[int, dict[str, str]] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: list[int] = []
        self.resets: list[int] = []
        self.exchange()

    def exchange(self) -> None:
        """Carry bytes between the two until neither has any, taking answers without opening the window."""
        self.server.receive(self.h2.data_to_send())
        while data := self.server.take_output():
            for event in self.h2.receive_data(data):
                self._take(event)

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.ResponseReceived() | h2.events.TrailersReceived():
                found = {_text(name): _text(value) for name, value in event.headers or ()}
                self.headers[event.stream_id or 0] = self.headers.get(event.stream_id or 0, {}) | found
            case h2.events.DataReceived():
                stream = event.stream_id or 0
                self.bodies[stream] = self.bodies.get(stream, b"") + (event.data or b"")
            case h2.events.StreamEnded():
                self.ended.append(event.stream_id or 0)
            case h2.events.StreamReset():
                self.resets.append(event.stream_id or 0)

    def ask(self, body: bytes = add_frame(b"hello"), path: str = "/test/Echo", **headers: str) -> int:
        """Send a request; return its stream."""
        stream = self.h2.get_next_available_stream_id()
        changed = {":path": path} | {{"method": ":method"}.get(k, k.replace("_", "-")): v for k, v in headers.items()}
        self.h2.send_headers(stream, [(name, changed.get(name, value)) for name, value in HEADERS])
        for begin in range(0, len(body), 16_384):
            self.h2.send_data(stream, body[begin : begin + 16_384])
        self.h2.end_stream(stream)
        return stream

    def answer(self, *args: Any, **headers: str) -> tuple[dict[str, str], bytes]:
        stream = self.ask(*args, **headers)
        self.exchange()
        assert stream in self.ended
        return self.headers[stream], self.bodies.get(stream, b"")


def _text(word: bytes | str) -> str:
    return word if isinstance(word, str) else word.decode()


def test_an_answer_is_a_framed_message_and_a_status() -> None:
    headers, body = Client().answer()
    assert headers == {":status": "200", "content-type": "application/grpc", "grpc-status": "0"}
    assert body == add_frame(b"hello") == b"\0\0\0\0\5hello"
    assert Client().answer(add_frame(b""))[1] == add_frame(b"")


@pytest.mark.parametrize(
    ("body", "path", "status", "message"),
    [
        (add_frame(b""), "/test/Refuse", 2, "no pod '%C3%BC' at 100%25%0A"),
        (add_frame(b""), "/test/Nothing", 12, "there is no method /test/Nothing"),
        (add_frame(b""), "/", 12, "there is no method /"),
        (add_frame(b""), "/test/Crash", 13, "internal error, see the agent's log"),
        (b"\1" + add_frame(b"a")[1:], "/test/Echo", 12, "the request is compressed, but only identity is supported"),
        (b"", "/test/Echo", 3, "the request has 0 bytes, but a message begins with a header of 5 bytes"),
        (b"\0\0\0\0", "/test/Echo", 3, "the request has 4 bytes, but a message begins with a header of 5 bytes"),
        (add_frame(b"a") * 2, "/test/Echo", 3, "the request is not one message: 1 bytes announced, 7 sent"),
        (add_frame(b"abc")[:-1], "/test/Echo", 3, "the request is not one message: 3 bytes announced, 2 sent"),
        (b"\2" + add_frame(b"a")[1:], "/test/Echo", 3, "the request is not one message: 1 bytes announced, 1 sent"),
        (add_frame(b"17000000"), "/test/Large", 8, "the answer has 17000000 bytes, more than 16777216"),
        (add_frame(bytes(MAX_REQUEST_BYTES)), "/test/Echo", 8, "the request has more than 4096 bytes"),
    ],
)
def test_what_has_no_answer_has_a_status_and_a_text(body: bytes, path: str, status: int, message: str) -> None:
    client = Client()
    headers, _ = client.answer(body, path)
    assert headers == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": str(status),
        "grpc-message": message,
    }
    assert len(client.bugs) == (path == "/test/Crash")
    assert client.answer()[1] == add_frame(b"hello"), "the connection goes on"


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"method": "GET"}, "405"), ({"content_type": "application/json"}, "415"), ({"content_type": ""}, "415")],
)
def test_what_is_no_call_has_a_status_of_http(headers: dict[str, str], status: str) -> None:
    client = Client()
    stream = client.ask(**headers)
    client.exchange()
    assert client.headers[stream] == {":status": status}
    assert client.answer()[1] == add_frame(b"hello")


def test_a_request_that_goes_on_for_too_long_is_answered_before_its_end() -> None:
    client = Client()
    stream = client.h2.get_next_available_stream_id()
    client.h2.send_headers(stream, HEADERS)
    client.h2.send_data(stream, bytes(MAX_REQUEST_BYTES + 1))
    client.h2.send_data(stream, bytes(MAX_REQUEST_BYTES + 1))
    client.exchange()
    assert client.resets == [stream]
    assert client.headers[stream]["grpc-status"] == "8"
    assert not client.server.waits_for_client
    assert client.answer()[1] == add_frame(b"hello")


@given(st.lists(st.integers(1, 40), max_size=6), st.integers(1, 30), st.integers(0, 5))
def test_no_frame_of_more_than_16_kib_is_waited_for(lengths: list[int], piece: int, too_long_after: int) -> None:
    """Whatever the pieces in which it comes: its end is never kept."""
    good = [frame(6, 1, 0, bytes(8)) + frame(0xEE, 0, 0, bytes(length)) for length in lengths]
    content = PREFACE + frame(4, 0, 0, b"") + b"".join(good[:too_long_after])
    server = GrpcConnection(METHODS, lambda _: None)
    for begin in range(0, len(content), piece):
        server.receive(content[begin : begin + piece])
    assert not server.is_over
    server.receive(struct.pack(">I", 16_385)[1:])
    assert not server.is_over
    server.receive(bytes(6) + b"and so on")
    assert server.is_over


def test_an_answer_waits_for_the_clients_window_and_holds_up_nobody_else() -> None:
    client = Client(window=1000)
    long = client.ask(add_frame(b"5000"), "/test/Large")
    client.exchange()
    assert len(client.bodies[long]) == 1000
    assert client.server.waits_for_client
    short = client.ask()
    client.exchange()
    assert client.bodies[short] == add_frame(b"hello")
    while long not in client.ended:
        client.h2.increment_flow_control_window(500, long)
        client.exchange()
    assert client.bodies[long] == add_frame(b"x" * 5000)
    assert not client.server.waits_for_client


@pytest.mark.whole
def test_an_answer_of_16_mib_fits_through_small_windows() -> None:
    client = Client(window=2**31 - 1)
    client.h2.increment_flow_control_window(2**30)
    stream = client.ask(add_frame(str(16 << 20).encode()), "/test/Large")
    client.exchange()
    assert len(client.bodies[stream]) == (16 << 20) + 5


def test_a_request_that_is_reset_is_forgotten_and_so_is_an_answer() -> None:
    client = Client(window=10)
    asked, unfinished = client.ask(add_frame(b"5000"), "/test/Large"), client.h2.get_next_available_stream_id()
    client.h2.send_headers(unfinished, HEADERS)
    client.exchange()
    assert client.server.waits_for_client
    client.h2.reset_stream(asked)
    client.h2.reset_stream(unfinished)
    at_once = client.ask()
    client.h2.reset_stream(at_once)
    client.exchange()
    assert not client.server.waits_for_client
    assert client.headers.keys() == {asked}


def test_too_many_calls_at_once_end_the_connection() -> None:
    client = Client()
    for _ in range(MAX_STREAMS):
        stream = client.h2.get_next_available_stream_id()
        client.h2.send_headers(stream, HEADERS)
    client.exchange()
    assert not client.server.is_over
    client.h2.remote_settings[h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS] = 1000
    client.h2.remote_settings.acknowledge()
    client.h2.send_headers(client.h2.get_next_available_stream_id(), HEADERS)
    client.exchange()
    assert client.server.is_over


def test_a_client_that_says_goodbye_is_gone() -> None:
    client = Client(window=10)
    client.ask(add_frame(b"5000"), "/test/Large")
    client.exchange()
    client.h2.close_connection()
    client.exchange()
    assert client.server.is_over
    assert not client.server.waits_for_client


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


FRAMES = st.builds(
    frame,
    st.integers(0, 12),
    st.sampled_from([0, 1, 4, 5, 8, 0x20, 0xFF]),
    st.sampled_from([0, 1, 2, 3, 2**31 - 1]),
    st.one_of(st.binary(max_size=40), st.sampled_from([bytes(4), b"\xff" * 4, bytes(8), add_frame(b"a")])),
)


def real_request() -> bytes:
    client = h2.connection.H2Connection()
    client.initiate_connection()
    client.send_headers(1, HEADERS)
    client.send_data(1, add_frame(b"a"), end_stream=True)
    return client.data_to_send()


REQUEST = real_request()


@given(st.booleans(), st.lists(st.one_of(FRAMES, st.binary(max_size=30)), max_size=8), st.integers(1, 50))
def test_frames_of_any_kind_raise_nothing(is_begun: bool, frames: list[bytes], piece: int) -> None:
    server = GrpcConnection(METHODS, lambda _: None)
    content = (REQUEST if is_begun else PREFACE + frame(4, 0, 0, b"")) + b"".join(frames)
    for begin in range(0, len(content), piece):
        server.receive(content[begin : begin + piece])
        while server.take_output():
            pass
        if server.is_over:
            break


class Served:
    """A server on a socket, whose bounds a test may choose."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "grpc.sock")
        self.failures: list[object] = []
        self.thread = ServingThread(lambda doing, err: self.failures.append((doing, err)))
        self.server: Server | None = None

    def begin(self, **bounds: Any) -> None:
        service = GrpcServer(METHODS, self.failures.append)
        service.bounds = msgspec.structs.replace(GrpcServer.bounds, **bounds)
        self.server = self.thread.serve(listen(UnixAddress(self.path)), Dialogue(service.bounds, service.attend))

    def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        self.thread.stop()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    one = Served(tmp_path)
    yield one
    one.stop()
    assert one.failures == []


@contextmanager
def grpc_channel(path: str) -> Iterator[Callable[[str, bytes], bytes]]:
    import grpc

    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.max_receive_message_length", 16 << 20)]) as channel:
        yield lambda method, message: channel.unary_unary(method)(message, timeout=60)


def test_a_real_client_gets_answers_of_every_size_over_one_connection(served: Served) -> None:
    served.begin()
    with grpc_channel(served.path) as call, ThreadPoolExecutor(8) as pool:
        sizes = [0, 1, 65_535, 65_536, 300_000, 4_000_000] * 4
        answers = pool.map(lambda size: call("/test/Large", str(size).encode()), sizes)
        assert [len(answer) for answer in answers] == sizes
        assert served.server is not None
        assert served.server.connections.reading == 1


def test_a_real_client_is_told_what_is_wrong(served: Served) -> None:
    import grpc

    served.begin()
    with grpc_channel(served.path) as call, pytest.raises(grpc.RpcError) as caught:
        call("/test/Refuse", b"")
    error: Any = caught.value
    assert (error.code(), error.details()) == (grpc.StatusCode.UNKNOWN, "no pod 'ü' at 100%\n")


def closed_by_server(channel: socket.socket) -> bool:
    channel.settimeout(30)
    try:
        while channel.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("said", [b"", PREFACE[:5], real_request()[:-3]], ids=["nothing", "a beginning", "half a call"])
def test_who_owes_something_for_too_long_is_dropped(served: Served, said: bytes) -> None:
    served.begin(read_seconds=0.1)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(served.path)
        channel.sendall(said)
        assert closed_by_server(channel)


def test_who_does_not_take_the_answer_is_dropped(served: Served) -> None:
    served.begin(write_seconds=0.1)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        channel.connect(served.path)
        client = h2.connection.H2Connection()
        client.local_settings = h2.settings.Settings(
            initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**31 - 1}
        )
        client.initiate_connection()
        client.increment_flow_control_window(2**30)
        path = [(name, "/test/Large" if name == ":path" else value) for name, value in HEADERS]
        client.send_headers(1, path)
        client.send_data(1, add_frame(b"16000000"), end_stream=True)
        channel.sendall(client.data_to_send())
        waiting = threading.Event()
        while served.server is not None and served.server.connections.reading:
            assert not waiting.wait(0.01)
    with grpc_channel(served.path) as call:
        assert call("/test/Echo", b"next") == b"next"


def answered_at_last(call: Callable[[str, bytes], bytes]) -> bytes:
    """Ask once more where the client had not seen yet that its connection is closed."""
    try:
        return call("/test/Echo", b"again")
    except grpc.RpcError as err:
        if err.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return call("/test/Echo", b"again")


def test_an_idle_connection_stays_until_others_need_its_place(served: Served) -> None:
    served.begin(connections=3, read_seconds=300.0)
    with grpc_channel(served.path) as call:
        assert call("/test/Echo", b"first") == b"first"
        others = [socket.socket(socket.AF_UNIX) for _ in range(6)]
        for channel in others:
            channel.connect(served.path)
        assert all(closed_by_server(channel) for channel in others[:3])
        assert served.server is not None
        assert served.server.connections.reading == 3
        assert answered_at_last(call) == b"again", "a real client connects again"
        for channel in others:
            channel.close()


def test_nonsense_and_clients_that_vanish_leave_the_server_as_it_was(served: Served) -> None:
    served.begin()
    request = real_request()
    for said in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"\xff" * 100_000, PREFACE + b"\xff" * 1000):
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(served.path)
            try:
                channel.sendall(said)
            except (BrokenPipeError, ConnectionResetError):
                continue
            assert closed_by_server(channel)
    for length in range(0, len(request), 7):
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(served.path)
            channel.sendall(request[:length])
    with grpc_channel(served.path) as call:
        assert call("/test/Echo", b"next") == b"next"


def test_no_more_than_a_bound_is_taken_from_an_answer_at_once() -> None:
    client = Client(window=2**31 - 1)
    client.h2.increment_flow_control_window(2**30)
    client.ask(add_frame(b"10000000"), "/test/Large")
    client.server.receive(client.h2.data_to_send())
    most = grpc_server._SEND_BYTES  # noqa: SLF001 - what is asked here
    assert most <= len(client.server.take_output()) < most + 20_000
