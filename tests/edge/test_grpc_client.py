"""gRPC calls, answered by grpcio's server, and by others that keep to nothing."""

import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import hpack
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded
from hypothesis import given, settings, strategies as st

from nodeagent.daemon.domains.runtime.kubelet_pods import KUBELET
from nodeagent.edge.transport.grpc_client import GrpcClient, GrpcError
from nodeagent.formats.runtime.kubelet_pods import GET_POD, MAX_BYTES, METADATA, encode_get_pod, read_pod
from nodeagent.formats.wire.grpc_messages import Status, add_frame, parse_status
from tests.support.device_plugin import HOSTILE_STATUSES
from tests.support.fuzz_targets import grpc_answer
from tests.support.hostile_plugin import frame
from tests.support.kubelet import serving
from tests.support.pods import app, init, pod
from tests.support.runtime_pods import kubelets
from tests.support.shares import share_of

PATIENCE_SECONDS = 60.0
"""Nothing takes that long but a bug."""
WEB = pod("web", init("setup", "3"), app("main", "2"))
OK = [(":status", "200"), ("content-type", "application/grpc")]
SETTINGS = struct.pack(">I", 0)[1:] + b"\x04\x00" + struct.pack(">I", 0)


def request(uid: str) -> bytes:
    found = encode_get_pod(uid)
    assert found is not None
    return found


def asked(path: Path, seconds: float = PATIENCE_SECONDS) -> bytes:
    with GrpcClient(KUBELET, path, time.monotonic() + seconds, MAX_BYTES) as kubelet:
        return kubelet.call(GET_POD, request(WEB.uid), METADATA)


def failure(path: Path, seconds: float = PATIENCE_SECONDS) -> GrpcError:
    with pytest.raises(GrpcError) as caught:
        asked(path, seconds)
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 600
    return caught.value


def test_a_pod_is_asked_for_by_its_uid_and_only_what_is_needed_of_it(tmp_path: Path) -> None:
    path = tmp_path / "pods-api.sock"
    with serving(path) as server:
        server.has(WEB)
        assert read_pod(asked(path), WEB.uid) == kubelets(WEB)
        assert (server.asked, server.masks) == ([WEB.uid], [[METADATA[0][1]]])


def test_one_connection_carries_one_call_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "pods-api.sock"
    pods = [pod(f"pod-{n}", app("main", "1")) for n in range(20)]
    with serving(path) as server, GrpcClient(KUBELET, path, time.monotonic() + PATIENCE_SECONDS, MAX_BYTES) as kubelet:
        for one in pods[::2]:
            server.has(one)
        for there, absent in zip(pods[::2], pods[1::2], strict=True):
            assert read_pod(kubelet.call(GET_POD, request(there.uid)), there.uid) == kubelets(there)
            with pytest.raises(GrpcError) as caught:
                kubelet.call(GET_POD, request(absent.uid))
            assert caught.value.status == Status.NOT_FOUND


def test_a_large_answer_passes_the_windows_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pods-api.sock"
    with serving(path) as server:
        server.raw = b"\0" * (MAX_BYTES - 100)
        assert len(asked(path)) > MAX_BYTES - 100
        server.raw = b"\0" * (8 * MAX_BYTES)
        assert "the answer has more than 262144 bytes" in failure(path).message


@pytest.mark.parametrize("code", [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT])
def test_a_refusal_is_told_with_kubelets_words(tmp_path: Path, code: grpc.StatusCode) -> None:
    path = tmp_path / "pods-api.sock"
    with serving(path) as server:
        server.refusal = (code, "not \x1b[2Jfor you" + "!" * 1000)
        message = failure(path).message
    assert "it refuses the call: not " in message
    assert f"({code.value[0]})" in message
    assert message.isprintable()


def test_a_server_of_something_else_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    server = grpc.server(None)
    server.add_insecure_port(f"unix:{path}")
    server.start()
    assert "it refuses the call: " in failure(path).message
    server.stop(None).wait()


def test_where_there_is_no_socket(tmp_path: Path) -> None:
    assert failure(tmp_path / "none").is_absent
    (tmp_path / "file").write_text("")
    assert "Connection refused" in failure(tmp_path / "file").message
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left"))
    left.close()
    found = failure(tmp_path / "left")
    assert "Connection refused" in found.message
    assert not found.is_absent


Behaviour = Callable[[socket.socket], None]


@contextmanager
def behaving(path: Path, behave: Behaviour) -> Iterator[None]:
    """A server that does so with its one connection, and keeps it until the end."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    over = threading.Event()

    def serve() -> None:
        channel, _ = listener.accept()
        with channel:
            try:
                behave(channel)
            except OSError:
                return
            over.wait(PATIENCE_SECONDS)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        listener.close()


def says(data: bytes) -> Behaviour:
    return lambda channel: channel.sendall(data)


def hangs_up(channel: socket.socket) -> None:
    channel.recv(1)
    channel.shutdown(socket.SHUT_RDWR)


def floods(frame: bytes) -> Behaviour:
    def behave(channel: socket.socket) -> None:
        channel.sendall(SETTINGS)
        threading.Thread(target=drain, args=(channel,), daemon=True).start()
        while True:
            channel.sendall(frame * 100)

    return behave


def drain(channel: socket.socket) -> None:
    try:
        while channel.recv(65536):
            pass
    except OSError:
        pass


def speaks(answer: Callable[[H2Connection, int], object]) -> Behaviour:
    """HTTP/2, with such an answer to the first call."""

    def behave(channel: socket.socket) -> None:
        config = H2Configuration(client_side=False, validate_outbound_headers=False, normalize_outbound_headers=False)
        server = H2Connection(config)
        server.initiate_connection()
        while True:
            channel.sendall(server.data_to_send())
            for event in server.receive_data(channel.recv(65536)):
                if isinstance(event, StreamEnded):
                    assert event.stream_id is not None
                    answer(server, event.stream_id)
                    channel.sendall(server.data_to_send())
                    return

    return behave


def ended(*headers: tuple[str, str]) -> Behaviour:
    return speaks(lambda h2, stream: h2.send_headers(stream, list(headers), end_stream=True))


def body(data: bytes, *trailers: tuple[str, str]) -> Behaviour:
    def answer(h2: H2Connection, stream: int) -> None:
        h2.send_headers(stream, OK)
        h2.send_data(stream, data, end_stream=not trailers)
        if trailers:
            h2.send_headers(stream, list(trailers), end_stream=True)

    return speaks(answer)


PING = struct.pack(">I", 8)[1:] + b"\x06\x00" + struct.pack(">I", 0) + b"12345678"
GRPC_OK = ("grpc-status", "0")


@pytest.mark.parametrize(
    ("behave", "why"),
    [
        (hangs_up, "it closed the connection before its answer was complete"),
        (says(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10), "a frame of its answer has more than 16384 bytes"),
        (says(SETTINGS + b"\xff" * 40), "a frame of its answer has more than 16384 bytes"),
        (says(b"\0\0\x05\x04\0\0\0\0\0" + b"x" * 40), "it violates the gRPC protocol"),
        (floods(PING), "the answer has more than 262144 bytes"),
        (floods(SETTINGS), "the answer has more than 262144 bytes"),
        (says(SETTINGS + b"\xff\xff\xff\x00" + b"x" * 10**6), "a frame of its answer has more than 16384 bytes"),
        (ended((":status", "503")), "HTTP status 503"),
        (ended(*OK), "has no gRPC status"),
        (ended(*OK, ("grpc-status", "7"), ("grpc-message", "no")), "it refuses the call: no (7)"),
        (body(b"", GRPC_OK), "the answer contains no message"),
        (body(b"\0\0\0\0", GRPC_OK), "ends in the middle of a message"),
        (body(b"\1" + add_frame(b"x")[1:], GRPC_OK), "the answer contains a compressed message"),
        (body(b"\0\xff\xff\xff\xff", GRPC_OK), "the answer has more than 262144 bytes"),
        (body(add_frame(b"x") * 2, GRPC_OK), "more than one message"),
        (body(add_frame(b"x")[:-1], GRPC_OK), "ends in the middle of a message"),
        (body(add_frame(b"x")), "has no gRPC status"),
        (body(add_frame(b"x"), GRPC_OK, ("content-length", "\u00b2")), "it violates the gRPC protocol"),
        (speaks(lambda h2, stream: h2.reset_stream(stream)), "it aborted the call (RST_STREAM)"),
        (speaks(lambda h2, _: h2.close_connection()), "it is closing the connection (GOAWAY)"),
    ],
)  # fmt: skip
def test_who_keeps_to_nothing_is_told_apart(tmp_path: Path, behave: Behaviour, why: str) -> None:
    path = tmp_path / "pods-api.sock"
    with behaving(path, behave):
        assert why in failure(path).message


@pytest.mark.parametrize("status", HOSTILE_STATUSES)
def test_a_status_is_a_small_number_in_ascii(tmp_path: Path, status: str) -> None:
    with behaving(tmp_path / "s", body(add_frame(b"x"), ("grpc-status", status))):
        assert "it violates the gRPC protocol" in failure(tmp_path / "s").message


@given(st.text() | st.from_regex("[0-9]+", fullmatch=True))
def test_whatever_a_status_is_it_is_a_small_number_or_none(text: str) -> None:
    expected = text in {f"{number:0{digits}}" for digits in (1, 2, 3) for number in range(10**digits)}
    assert parse_status(text) == (int(text) if expected else None)


def test_one_that_never_answers_costs_no_more_than_the_time_there_is(tmp_path: Path) -> None:
    path = tmp_path / "pods-api.sock"
    with behaving(path, says(SETTINGS)):
        found = failure(path, 0.1)
    assert found.is_late
    assert "it has not answered in time" in found.message


class Echo(grpc.GenericRpcHandler):
    """Answers each call with its request."""

    def service(self, _: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        return grpc.unary_unary_rpc_method_handler(lambda message, _: message)


@pytest.mark.parametrize("size", [16_384 - 5, 16_384 - 4, 65_535 - 5, 65_535 - 4, 200_000])
def test_a_request_may_be_larger_than_a_frame_and_than_the_window(tmp_path: Path, size: int) -> None:
    server = grpc.server(ThreadPoolExecutor(1), handlers=(Echo(),))
    server.add_insecure_port(f"unix:{tmp_path}/s")
    server.start()
    request = bytes(n % 251 for n in range(size))
    with GrpcClient(KUBELET, tmp_path / "s", time.monotonic() + PATIENCE_SECONDS, MAX_BYTES) as client:
        assert client.call("/echo", request) == request
        assert client.call("/echo", b"again") == b"again"
    server.stop(None).wait()


def test_a_server_that_does_not_take_the_request_costs_no_more_than_the_time_there_is(tmp_path: Path) -> None:
    with (
        behaving(tmp_path / "s", says(SETTINGS)),
        pytest.raises(GrpcError) as caught,
        GrpcClient(KUBELET, tmp_path / "s", time.monotonic() + 0.2, MAX_BYTES) as client,
    ):
        client.call("/echo", bytes(100_000))
    assert caught.value.is_late


def test_an_answer_to_a_part_of_a_request_is_none(tmp_path: Path) -> None:
    with (
        behaving(tmp_path / "s", speaks_early),
        pytest.raises(GrpcError, match="before the whole request was sent"),
        GrpcClient(KUBELET, tmp_path / "s", time.monotonic() + PATIENCE_SECONDS, MAX_BYTES) as client,
    ):
        client.call("/echo", bytes(100_000))


def speaks_early(channel: socket.socket) -> None:
    """Answer as soon as a call begins."""
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    while not any(isinstance(event, RequestReceived) for event in server.receive_data(channel.recv(65536))):
        pass
    server.send_headers(1, OK)
    server.send_data(1, add_frame(b""))
    server.send_headers(1, [("grpc-status", "0")], end_stream=True)
    channel.sendall(server.data_to_send())


def test_one_that_nobody_serves_any_more_costs_no_more_either(tmp_path: Path) -> None:
    """Its backlog is full, and so connect(2) waits."""
    path = tmp_path / "pods-api.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(0)
    others = [socket.socket(socket.AF_UNIX)]
    others[0].connect(str(path))
    assert failure(path, 0.1).is_late
    for one in (*others, listener):
        one.close()


def test_there_may_be_no_time_left(tmp_path: Path) -> None:
    path = tmp_path / "pods-api.sock"
    with serving(path) as server:
        assert failure(path, -1.0).is_late
        assert server.asked == []


FRAMES = st.lists(
    st.tuples(
        st.binary(max_size=40),
        st.sampled_from([*range(11), 255]),
        st.integers(0, 255),
        st.sampled_from([0, 1, 2, 3, 2**31]),
    ),
    max_size=8,
).map(
    lambda frames: b"".join(
        struct.pack(">I", len(data))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + data
        for data, kind, flags, stream in frames
    )
)


@given(FRAMES)
@settings(max_examples=share_of(60), deadline=None)
def test_whatever_frames_come_there_is_an_answer_or_one_error(frames: bytes) -> None:
    def behave(channel: socket.socket) -> None:
        channel.sendall(SETTINGS + frames)
        channel.shutdown(socket.SHUT_WR)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "s"
        with behaving(path, behave), suppress(GrpcError):
            asked(path)


NUMBERS = st.sampled_from([0, 1, 2, 5, 16_384, 16_385, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1])
STREAMS = st.sampled_from([1, 1, 1, 1, 0, 2, 3])
FLAGS = st.sampled_from([0, 1, 4, 5, 8, 12, 0x20])
HEADERS = st.lists(
    st.sampled_from(
        [*OK, (":status", "503"), (":status", "\u00b2"), ("grpc-message", "%F0%"), ("content-length", "3"), ("X", "y")]
    )
    | st.sampled_from(HOSTILE_STATUSES).map(lambda status: ("grpc-status", status))
    | st.just(GRPC_OK),
    max_size=5,
).map(lambda headers: hpack.Encoder().encode(headers))
BODIES = st.lists(
    st.sampled_from([add_frame(b""), add_frame(b"x" * 40), b"\1\0\0\0\1x", b"\0\xff\xff\xff\xff", b"\0\0"]), max_size=3
).map(b"".join)
GRAMMAR = st.lists(
    st.one_of(
        st.builds(frame, st.just(0), BODIES, FLAGS, STREAMS),
        st.builds(frame, st.just(1), HEADERS, FLAGS, STREAMS),
        st.builds(frame, st.just(2), NUMBERS.map(lambda n: struct.pack(">IB", n, n & 255)), FLAGS, STREAMS),
        st.builds(frame, st.sampled_from([3, 8]), NUMBERS.map(lambda n: struct.pack(">I", n)), FLAGS, STREAMS),
        st.builds(
            frame,
            st.just(4),
            st.lists(st.tuples(st.integers(0, 8), NUMBERS), max_size=3).map(
                lambda pairs: b"".join(struct.pack(">HI", *pair) for pair in pairs)
            ),
            st.sampled_from([0, 0, 1]),
            st.sampled_from([0, 0, 0, 1]),
        ),
        st.builds(frame, st.just(5), HEADERS.map(lambda block: b"\0\0\0\2" + block), FLAGS, STREAMS),
        st.builds(frame, st.just(6), st.just(b"12345678"), FLAGS, STREAMS.map(lambda stream: stream % 2)),
        st.builds(frame, st.just(7), NUMBERS.map(lambda n: struct.pack(">II", 1, n)), FLAGS, st.just(0)),
        st.builds(frame, st.just(9), HEADERS, FLAGS, STREAMS),
    ),
    max_size=10,
).map(b"".join)
"""Frames as HTTP/2 has them, with what may be wrong in each, in an order that may be wrong."""


@given(GRAMMAR, st.integers(0, 30))
def test_whatever_is_said_in_frames_there_is_an_answer_or_one_error(frames: bytes, cut: int) -> None:
    grpc_answer(SETTINGS + frames[: len(frames) - cut])


@given(
    st.lists(st.tuples(st.sampled_from(["grpc-status", "grpc-message", "x"]), st.binary(max_size=8)), max_size=4),
    st.binary(max_size=20),
)
@settings(max_examples=60, deadline=None)
def test_whatever_headers_and_messages_come_there_is_an_answer_or_one_error(
    trailers: list[tuple[str, bytes]], data: bytes
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "s"
        with behaving(path, body(data, *trailers)), suppress(GrpcError):
            asked(path)
