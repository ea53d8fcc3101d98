import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.local_api import LocalApi, WaitingOperation
from nodeagent.edge.transport.local_api_client import ApiError, ApiUnavailable, call
from nodeagent.edge.transport.serving import Server, ServingThread
from nodeagent.errors import NodeAgentError
from nodeagent.formats.syntax.bind_address import UnixAddress
from nodeagent.formats.wire.exchange import Bounds

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can ask as another user")
GROUP = 4242
OTHER = 65_534


class Impatient(LocalApi):
    bounds = Bounds(connections=8, request_bytes=1000, read_seconds=0.2, write_seconds=0.2)


class Patient(LocalApi):
    """Nobody is dropped for being slow, only for others' sake."""

    bounds = msgspec.structs.replace(LocalApi.bounds, read_seconds=300.0, write_seconds=300.0)


def refuse(_: Mapping[str, Any]) -> None:
    raise NodeAgentError("no pod 'x'", hint="see `nodeagent inspect`")


def crash(_: Mapping[str, Any]) -> None:
    raise KeyError("secret")


async def written(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return dict(arguments)


class Daemon:
    def __init__(self, directory: Path, kind: type[LocalApi]) -> None:
        self.path = str(directory / "api.sock")
        self.bugs: list[BaseException | None] = []
        self.release = threading.Event()
        reads: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "echo": dict,
            "refuse": refuse,
            "crash": crash,
            "unprintable": lambda _: {1, 2},
            "large": lambda arguments: "x" * arguments["bytes"],
        }
        writes: dict[str, WaitingOperation] = {"retry": written, "wait": self._wait}
        self.thread = ServingThread(lambda _, err: self.bugs.append(err))
        self.api = kind(reads=reads, writes=writes, owner=os.geteuid(), group=GROUP)
        self.server: Server = self.thread.serve(listen(UnixAddress(self.path)), self.api)

    async def _wait(self, _: Mapping[str, Any]) -> bool:
        return await asyncio.to_thread(self.release.wait, 30)

    def stop(self) -> None:
        self.release.set()
        self.server.close()
        self.thread.stop()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    started = Daemon(tmp_path, LocalApi)
    yield started
    started.stop()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Daemon]:
    started = Daemon(tmp_path, Impatient)
    yield started
    started.stop()


@contextmanager
def connected(path: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(30)
        channel.connect(path)
        yield channel


def until_closed(channel: socket.socket) -> bytes:
    parts = []
    try:
        while part := channel.recv(65_536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def raw(path: str, request: bytes) -> Any:
    with connected(path) as channel:
        channel.sendall(request)
        return json.loads(until_closed(channel))


def test_a_question_is_answered(daemon: Daemon) -> None:
    assert call(daemon.path, "echo", pod="a", count=3) == {"pod": "a", "count": 3}
    assert call(daemon.path, "retry", pod="a") == {"pod": "a"}
    assert daemon.bugs == []


def test_a_megabytes_answer_arrives_whole(daemon: Daemon) -> None:
    assert call(daemon.path, "large", bytes=8_000_000) == "x" * 8_000_000


def test_a_refusal_comes_with_its_hint(daemon: Daemon) -> None:
    with pytest.raises(ApiError) as caught:
        call(daemon.path, "refuse")
    assert caught.value.message == "no pod 'x'"
    assert caught.value.hint == "see `nodeagent inspect`"
    assert daemon.bugs == []


@pytest.mark.parametrize("op", ["crash", "unprintable"])
def test_a_bug_is_reported_to_the_daemon_not_to_the_client(daemon: Daemon, op: str) -> None:
    with pytest.raises(ApiError) as caught:
        call(daemon.path, op)
    assert "internal error" in caught.value.message
    assert "secret" not in caught.value.message
    assert len(daemon.bugs) == 1
    assert call(daemon.path, "echo") == {}


def test_an_unknown_operation_names_the_known_ones(daemon: Daemon) -> None:
    with pytest.raises(ApiError) as caught:
        call(daemon.path, "drop-everything")
    assert "drop-everything" in caught.value.message
    assert "echo" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "request_line", [b"\n", b"[]\n", b"GET / HTTP/1.1\r\n\r\n", b"\0\xff\n", b"[" * 60_000 + b"\n"]
)
def test_a_malformed_request_is_refused_with_the_reason(daemon: Daemon, request_line: bytes) -> None:
    reply = raw(daemon.path, request_line)
    assert reply["ok"] is False
    assert "malformed request" in reply["error"]["message"]
    assert daemon.bugs == []


def test_a_waiting_write_holds_nobody_up(daemon: Daemon) -> None:
    with connected(daemon.path) as waiting:
        waiting.sendall(b'{"op": "wait"}\n')
        assert call(daemon.path, "echo") == {}
        daemon.release.set()
        assert json.loads(until_closed(waiting)) == {"ok": True, "result": True}


def test_too_large_a_request_is_refused_with_the_reason(impatient: Daemon) -> None:
    reply = raw(impatient.path, b'{"op": "' + b"x" * 5000)
    assert "too large" in reply["error"]["message"]


def drip(channel: socket.socket) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        channel.sendall(b" ")
        time.sleep(0.01)


def test_a_slow_client_is_dropped_even_if_it_keeps_sending(impatient: Daemon) -> None:
    with connected(impatient.path) as channel, pytest.raises((BrokenPipeError, ConnectionResetError)):
        drip(channel)
    assert call(impatient.path, "echo") == {}


def test_a_client_that_takes_no_answer_is_dropped(impatient: Daemon) -> None:
    with connected(impatient.path) as channel:
        channel.sendall(b'{"op": "large", "bytes": 30000000}\n')
        wait_until(lambda: impatient.server.connections.parting == 1)
        wait_until(lambda: impatient.server.connections.parting == 0)
        assert len(until_closed(channel)) < 30_000_000


def test_silent_clients_push_each_other_out_and_honest_ones_get_through(daemon: Daemon) -> None:
    silent = []
    for _ in range(200):
        channel = socket.socket(socket.AF_UNIX)
        channel.connect(daemon.path)
        silent.append(channel)
        if len(silent) % 20 == 0:
            assert call(daemon.path, "echo") == {}
    open_now = sum(daemon.server.connections)
    for channel in silent:
        channel.close()
    assert open_now <= LocalApi.bounds.connections


def test_when_all_connections_wait_for_answers_the_next_one_is_refused_with_the_reason(impatient: Daemon) -> None:
    with connected(impatient.path) as last:
        waiting = []
        for _ in range(8):
            channel = socket.socket(socket.AF_UNIX)
            channel.connect(impatient.path)
            channel.sendall(b'{"op": "wait"}\n')
            waiting.append(channel)
            wait_until(lambda: impatient.server.connections.answering == len(waiting))
        last.close()
        with pytest.raises(ApiError) as caught:
            call(impatient.path, "echo")
        impatient.release.set()
        assert all(json.loads(until_closed(c))["ok"] for c in waiting)
        for channel in waiting:
            channel.close()
    assert "too many connections" in caught.value.message


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that other users can enter: pytest's own are closed to them, again with every session that starts."""
    with tempfile.TemporaryDirectory(prefix="nodeagent-test-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


AS_SOMEBODY = """
import os, sys
from nodeagent.edge.transport.local_api_client import call
from nodeagent.errors import NodeAgentError
path, op, uid, gid, *groups = sys.argv[1:]
os.setgroups([int(g) for g in groups])
os.setresgid(int(gid), int(gid), int(gid))
os.setresuid(int(uid), int(uid), int(uid))
try:
    print("answer", call(path, op))
except NodeAgentError as err:
    print(err.message, err.hint)
"""


def as_somebody(path: str, op: str, uid: int, gid: int, groups: list[int]) -> str:
    """Ask as another user. Python has to be loaded before it becomes one: it may lie in root's home."""
    arguments = [sys.executable, "-c", AS_SOMEBODY, path, op, str(uid), str(gid), *map(str, groups)]
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout


ASKS_AND_NEVER_READS = """
import os, socket, sys
path, request, group = sys.argv[1:]
os.setgroups([int(group)])
os.setresuid(65534, 65534, 65534)
channels = [socket.socket(socket.AF_UNIX) for _ in range(32)]
for channel in channels:
    channel.connect(path)
    channel.sendall(request.encode())
print("asked", flush=True)
sys.stdin.read()
"""


@root_only
@pytest.mark.parametrize(
    "request_line", ['{"op": "large", "bytes": 2000000}\n', '{"op":'], ids=["never reads", "never asks"]
)
def test_one_user_cannot_keep_others_out(open_directory: Path, request_line: str) -> None:
    daemon = Daemon(open_directory, Patient)
    Path(daemon.path).chmod(0o666)
    words = [sys.executable, "-c", ASKS_AND_NEVER_READS, daemon.path, request_line, str(GROUP)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "asked\n"
            stuck = (0, 0, 32) if "large" in request_line else (32, 0, 0)
            wait_until(lambda: daemon.server.connections == stuck)
            with connected(daemon.path) as waiting:
                waiting.sendall(b'{"op": "wait"}\n')
                wait_until(lambda: daemon.server.connections.answering == 1)
                assert call(daemon.path, "echo") == {}
                daemon.release.set()
                assert json.loads(until_closed(waiting))["ok"]
        finally:
            other.kill()
            daemon.stop()


@root_only
@pytest.mark.parametrize(
    ("uid", "gid", "groups", "read", "write"),
    [
        (0, 0, [], "answer", "answer"),
        (OTHER, GROUP, [], "answer", "run as root"),
        (OTHER, OTHER, [7, GROUP], "answer", "run as root"),
        (OTHER, OTHER, [], "member of the group", "run as root"),
        (OTHER, 0, [0], "member of the group", "run as root"),
    ],
    ids=["root", "group", "supplementary group", "stranger", "root's group"],
)
def test_who_may_ask_what(open_directory: Path, uid: int, gid: int, groups: list[int], read: str, write: str) -> None:
    daemon = Daemon(open_directory, LocalApi)
    try:
        Path(daemon.path).chmod(0o666)
        assert read in as_somebody(daemon.path, "echo", uid, gid, groups)
        assert write in as_somebody(daemon.path, "retry", uid, gid, groups)
        Path(daemon.path).chmod(0o600)
        if uid != 0:
            assert "cannot connect" in as_somebody(daemon.path, "echo", uid, gid, groups)
    finally:
        daemon.stop()


def absent(base: Path) -> str:
    return str(base / "absent")


def dead(base: Path) -> str:
    listen(UnixAddress(str(base / "dead"))).close()
    return str(base / "dead")


def a_file(base: Path) -> str:
    (base / "file").write_bytes(b"")
    return str(base / "file")


@pytest.mark.parametrize("place", [absent, dead, a_file])
def test_no_daemon(tmp_path: Path, place: Callable[[Path], str]) -> None:
    path = place(tmp_path)
    with pytest.raises(ApiUnavailable) as caught:
        call(path, "echo")
    assert path in caught.value.message
    assert "systemctl status" in (caught.value.hint or "")


def test_a_daemon_that_does_not_answer(tmp_path: Path) -> None:
    path = str(tmp_path / "api.sock")
    with listen(UnixAddress(path)), pytest.raises(ApiUnavailable) as caught:
        call(path, "echo", timeout_seconds=0.1)
    assert "0.1 s" in caught.value.message


@pytest.mark.parametrize(
    ("reply", "kind", "word"),
    [
        (b"", ApiUnavailable, "after 0 bytes"),
        (b'{"ok": true, "res', ApiUnavailable, "middle"),
        (b"HTTP/1.1 400\r\n", ApiError, "another program"),
    ],
)
def test_a_strange_answer(tmp_path: Path, reply: bytes, kind: type[NodeAgentError], word: str) -> None:
    path = str(tmp_path / "api.sock")
    listener = listen(UnixAddress(path))

    def answer() -> None:
        channel, _ = listener.accept()
        with channel:
            channel.recv(1000)
            channel.sendall(reply)

    thread = threading.Thread(target=answer)
    thread.start()
    with pytest.raises(kind) as caught:
        call(path, "echo")
    thread.join()
    listener.close()
    assert word in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("is_met", [True, False], ids=["met", "just connected"])
def test_stopping_removes_the_socket_and_drops_clients(tmp_path: Path, is_met: bool) -> None:
    daemon = Daemon(tmp_path, LocalApi)
    with connected(daemon.path) as channel:
        channel.sendall(b"{")
        if is_met:
            wait_until(lambda: daemon.server.connections.reading == 1)
        daemon.stop()
        assert until_closed(channel) == b""
    assert not Path(daemon.path).exists()
    with pytest.raises(ApiUnavailable):
        call(daemon.path, "echo")


NO_DESCRIPTORS = """
import os, resource, socket, sys, threading
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.local_api import LocalApi
from nodeagent.edge.transport.local_api_client import call
from nodeagent.edge.transport.serving import ServingThread
from nodeagent.formats.syntax.bind_address import UnixAddress
failed = threading.Event()
thread = ServingThread(lambda doing, err: (print(doing, err), failed.set()))
thread.serve(listen(UnixAddress(sys.argv[1])), LocalApi(reads={"echo": dict}, writes={}, owner=os.geteuid(), group=None))
client = socket.socket(socket.AF_UNIX)
used = []
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
try:
    while True:
        used.append(os.dup(0))
except OSError:
    client.connect(sys.argv[1])
assert failed.wait(30)
for one in used:
    os.close(one)
print(call(sys.argv[1], "echo", after="all", timeout_seconds=30))
"""


def test_out_of_descriptors_it_reports_waits_and_goes_on(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", NO_DESCRIPTORS, str(tmp_path / "api.sock")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=120)
    failures = [line for line in done.stdout.splitlines() if line.startswith("accepting")]
    assert failures, done.stderr
    assert "Too many open files" in failures[0]
    assert len(failures) < 30
    assert done.stdout.splitlines()[-1] == "{'after': 'all'}"
