"""The launcher's own life: it is killed, re-executed, stopped, and asked by clients that mean no good."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nodeagent.edge.processes.launcher import LauncherClient, LauncherError
from nodeagent.formats.wire import launcher_protocol as protocol
from nodeagent.formats.wire.launcher_protocol import (
    Exited,
    Killed,
    LauncherProtocolError,
    Returned,
    Running,
    StartStage,
    UnknownEnd,
)
from nodeagent.launcher import clients, server, shim
from nodeagent.launcher.order import Order
from nodeagent.launcher.records import ProcessRecord
from tests.support.launcher_process import DEADLINE_SECONDS, MODULE, LauncherProcess, command_after, launcher, wait_for

__all__ = ["launcher"]
NOBODY = 65534


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- crash and restart


def test_a_killed_launcher_leaves_processes_and_ends_to_the_next(launcher: LauncherProcess) -> None:
    long = launcher.start("long", "sleep", "1000")
    launcher.start("short", "sh", "-c", "exit 3")
    ended = launcher.end_of("short")

    launcher.kill()
    assert lives(long.pid)
    launcher.run()

    assert launcher.client.list() == (long, ended)
    assert launcher.client.start(launcher.request("long", "false")) == long
    assert launcher.client.signal("long", signal.SIGTERM)
    assert launcher.end_of("long").end is UnknownEnd.LAUNCHER_RESTARTED
    assert launcher.end_of("long").exit_code is None
    assert launcher.client.ack(["long", "short"]) == ("long", "short")
    launcher.kill()
    launcher.run()
    assert launcher.client.list() == ()


def test_an_end_that_no_launcher_saw_is_unknown(launcher: LauncherProcess) -> None:
    run = launcher.start("run", "sleep", "1000")
    launcher.kill()
    os.kill(run.pid, signal.SIGKILL)
    wait_for(lambda: not lives(run.pid), "it ends")
    launcher.run()
    (end,) = launcher.client.list()
    assert isinstance(end, Exited)
    assert end.end is UnknownEnd.LAUNCHER_RESTARTED
    assert json.loads((launcher.state / "run.json").read_bytes())["unknown"] == "launcher_restarted"


def test_a_deleted_socket_is_told_even_with_a_connection_to_its_launcher(launcher: LauncherProcess) -> None:
    launcher.client.hello()
    launcher.socket.unlink()
    with pytest.raises(LauncherError, match="No such file or directory"):
        launcher.client.hello()


@pytest.mark.parametrize(
    ("field", "value", "end"),
    [
        pytest.param("start_ticks", 1, UnknownEnd.LAUNCHER_RESTARTED, id="its pid is another process's now"),
        pytest.param("boot_id", "another", UnknownEnd.HOST_REBOOTED, id="the host was rebooted"),
    ],
)
def test_a_process_is_known_by_more_than_its_pid(
    launcher: LauncherProcess, field: str, value: object, end: UnknownEnd
) -> None:
    run = launcher.start("run", "sleep", "1000")
    launcher.kill()
    path = launcher.state / "run.json"
    record = json.loads(path.read_bytes())
    path.write_text(json.dumps({**record, field: value}))
    launcher.run()
    try:
        assert launcher.end_of("run").end is end
        assert launcher.client.signal("run", signal.SIGKILL) is False
        assert lives(run.pid)
    finally:
        os.kill(run.pid, signal.SIGKILL)


def test_a_torn_record_is_set_aside_and_a_newer_launchers_is_read(launcher: LauncherProcess) -> None:
    launcher.start("new", "true")
    launcher.end_of("new")
    launcher.kill()
    (launcher.state / "torn.json").write_text('{"id": "torn", "pi')
    (launcher.state / "list.json").write_text("[]")
    path = launcher.state / "new.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "a_later_field": 1}))
    launcher.run()
    assert [status.id for status in launcher.client.list()] == ["new"]
    assert {path.name for path in launcher.state.glob("*.unreadable-*")} == {
        "torn.unreadable-1",
        "list.unreadable-1",
    }
    assert "record_set_aside" in launcher.errors.read_text()


def test_an_end_is_reported_even_when_its_record_cannot_be_written(launcher: LauncherProcess) -> None:
    launcher.start("run", "sleep", "1000")
    (launcher.state / "run.json").unlink()
    (launcher.state / "run.json").mkdir()
    launcher.client.signal("run", signal.SIGKILL)
    assert launcher.end_of("run").end == Killed(signal.SIGKILL, core_dumped=False)
    assert "record_not_written" in launcher.errors.read_text()
    assert launcher.client.ack(["run"]) == ("run",)


def test_a_shim_whose_launcher_is_gone_before_its_record_never_executes(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    order = Order(id="run", argv=["touch", str(tmp_path / "executed")], env={}, identifier="", log_file="/dev/null")
    pid = os.fork()
    if pid == 0:
        ours.close()
        shim.become_process(order, None, str(tmp_path / "journal"), theirs.fileno(), is_inside=False)
    theirs.close()
    ours.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 127
    assert not (tmp_path / "executed").exists()


def test_reexecution_keeps_children_and_their_exit_codes(launcher: LauncherProcess, tmp_path: Path) -> None:
    assert launcher.process is not None
    os.mkfifo(tmp_path / "fifo")
    run = launcher.start("run", "sh", "-c", 'read line <"$0"; exit 5', str(tmp_path / "fifo"))
    for _ in range(2):
        before_ms = launcher.client.hello().started_at_ms
        launcher.process.send_signal(signal.SIGHUP)
        wait_for(partial(restarted, launcher, before_ms), "the next image answers")
        assert launcher.client.hello().pid == launcher.process.pid
        assert launcher.client.list() == (run,)
    (tmp_path / "fifo").write_text("go\n")
    assert launcher.end_of("run").end == Returned(5)
    open_files = len(list(Path(f"/proc/{launcher.process.pid}/fd").iterdir()))
    assert open_files < 16, "nothing leaks from image to image"


def restarted(launcher: LauncherProcess, before_ms: int) -> bool:
    try:
        return LauncherClient(launcher.socket).hello().started_at_ms > before_ms
    except LauncherError:
        return False


def test_a_bug_costs_no_exit_code(launcher: LauncherProcess, tmp_path: Path) -> None:
    launcher.kill()
    launcher.run(
        command_after("from nodeagent.launcher.server import Launcher; Launcher.acknowledge = lambda *_: 1 // 0")
    )
    os.mkfifo(tmp_path / "fifo")
    launcher.start("run", "sh", "-c", 'read line <"$0"; exit 5', str(tmp_path / "fifo"))
    before = launcher.client.hello()
    with pytest.raises(LauncherError):
        launcher.client.ack(["run"])
    wait_for(lambda: restarted(launcher, before.started_at_ms), "the next image answers")
    (tmp_path / "fifo").write_text("go\n")
    assert launcher.end_of("run").end == Returned(5)
    assert "ZeroDivisionError" in launcher.errors.read_text()


def test_there_is_one_launcher_per_state_directory(launcher: LauncherProcess, tmp_path: Path) -> None:
    command = [*MODULE, "--socket", str(tmp_path / "other.sock"), "--state-dir", str(launcher.state)]
    second = subprocess.run(command, capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert (second.returncode, second.stderr.split()[0]) == (1, b"another_launcher_runs")
    assert not (tmp_path / "other.sock").exists()
    assert launcher.client.hello()


# ---- stop


def test_stop_asks_waits_kills_and_keeps_the_ends(launcher: LauncherProcess) -> None:
    assert launcher.process is not None
    for name in ("pod1", "holder"):
        (launcher.container.parents[1] / name).mkdir(exist_ok=True)
        (launcher.container.parents[1] / name / "cgroup.kill").touch()
    ready = launcher.directory / "ready"
    script = "trap '' TERM; touch \"$0\"; while :; do sleep 0.1; done"
    launcher.start("deaf", "sh", "-c", script, str(ready), grace_seconds=1)
    launcher.start("polite", "sleep", "1000", grace_seconds=60)
    wait_for(ready.exists, "the trap is set")
    began = time.monotonic()
    launcher.process.terminate()
    wait_for(lambda: refuses_starts(launcher), "it stops")
    assert launcher.process.wait(DEADLINE_SECONDS) == 0
    assert 1 <= time.monotonic() - began < 30, "each has its own grace period"
    assert (launcher.container.parent / "cgroup.kill").read_text() == "1"
    assert (launcher.container.parents[1] / "holder" / "cgroup.kill").read_text() == ""
    launcher.run()
    assert launcher.end_of("deaf").end == Killed(signal.SIGKILL, core_dumped=False)
    assert launcher.end_of("polite").end == Killed(signal.SIGTERM, core_dumped=False)


def refuses_starts(launcher: LauncherProcess) -> bool:
    try:
        launcher.client.start(launcher.request("late", "true"))
    except LauncherError as err:
        return "stopping" in err.message
    return False


def test_stop_waits_no_longer_than_needed(launcher: LauncherProcess) -> None:
    assert launcher.process is not None
    launcher.start("child", "sleep", "1000", grace_seconds=3600)
    launcher.kill()
    launcher.run()
    launcher.start("other", "sleep", "1000", grace_seconds=3600)
    launcher.process.terminate()
    assert launcher.process.wait(DEADLINE_SECONDS) == 0
    launcher.run()
    assert launcher.end_of("child").end is UnknownEnd.LAUNCHER_RESTARTED
    assert launcher.end_of("other").end == Killed(signal.SIGTERM, core_dumped=False)


def test_systemd_is_notified(launcher: LauncherProcess, tmp_path: Path) -> None:
    launcher.kill()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(DEADLINE_SECONDS)
        process = launcher.run(env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
        assert systemd.recv(4096) == b"READY=1"
        launcher.start("run", "sleep", "1000", grace_seconds=70)
        process.terminate()
        assert systemd.recv(4096) == b"STOPPING=1\nEXTEND_TIMEOUT_USEC=100000000"
        assert process.wait(DEADLINE_SECONDS) == 0


# ---- clients


def ask(launcher: LauncherProcess, packet: bytes) -> bytes:
    with launcher.connection() as stream:
        stream.send(packet)
        return stream.recv(protocol.MAX_ANSWER_BYTES)


def test_events_wake_and_close_ends_them(launcher: LauncherProcess) -> None:
    client = LauncherClient(launcher.socket)
    events = client.events()
    next(events)  # it listens
    launcher.start("run", "true")
    next(events)
    assert isinstance(launcher.client.list()[0], Exited)  # an end is known before anyone is woken for it
    closer = threading.Timer(0.05, client.close)
    closer.start()
    assert next(events, "finished") == "finished"
    closer.join()
    assert list(client.events()) == []


def test_events_fail_when_the_launcher_goes(launcher: LauncherProcess) -> None:
    events = launcher.client.events()
    next(events)
    launcher.kill()
    with pytest.raises(LauncherError):
        next(events)


REFUSED = {
    "no JSON": (b"{", "bad_request"),
    "no UTF-8": (b"\xff\xfe\xff", "bad_request"),
    "no object": (b"[]", "bad_request"),
    "nothing in it": (b"{}", "bad_request"),
    "no writes to the host": (b'{"op": "host"}', "bad_request"),
    "a write without a value": (b'{"op": "host", "writes": [["/proc/irq/24/smp_affinity_list"]]}', "bad_request"),
    "a write of numbers": (b'{"op": "host", "writes": [[1, 2]]}', "bad_request"),
    "CPUs that do not ascend": (b'{"op": "host", "writes": [["thread 2@1", "3-2"]]}', "bad_request"),
    "deep": (b"[" * 100_000, "bad_request"),
    "a number too long": (b'{"op": ' + b"1" * 5000 + b"}", "bad_request"),
    "unknown operation": (b'{"op": "reboot"}', "bad_request"),
    "another protocol": (b'{"op": "hello", "protocol": 2}', "unsupported_protocol"),
    "too large": (b'{"op": "list", "x": "' + b"x" * protocol.MAX_REQUEST_BYTES + b'"}', "too_large"),
    "start of nothing": (b'{"op": "start"}', "bad_request"),
    "start with an unknown field": (b'{"op": "start", "id": "a", "nice": 1}', "bad_request"),
    "signal without a number": (b'{"op": "signal", "id": "a"}', "bad_request"),
    "signal out of bounds": (b'{"op": "signal", "id": "a", "signal": 1000}', "bad_request"),
    "signal to nobody": (b'{"op": "signal", "id": "a", "signal": 15}', "unknown_id"),
    "ack of no list": (b'{"op": "ack", "ids": "a"}', "bad_request"),
}
MALFORMED: dict[str, dict[str, object]] = {
    "id empty": {"id": ""},
    "id with a newline": {"id": "a\n"},
    "id too long": {"id": "a" * 121},
    "id no text": {"id": 5},
    "identifier with a newline": {"identifier": "a\nb"},
    "argv empty": {"argv": []},
    "argv of numbers": {"argv": ["true", 1]},
    "argv none": {"argv": None},
    "env of numbers": {"env": {"A": 1}},
    "env a list": {"env": ["A=1"]},
    "grace no number": {"grace_seconds": "1"},
    "grace negative": {"grace_seconds": -1},
    "grace true": {"grace_seconds": True},
    "cgroup no text": {"cgroup": 7},
    "cgroup with NUL": {"cgroup": "/a\0b"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_broken_requests_are_refused(launcher: LauncherProcess, name: str) -> None:
    packet, code = REFUSED[name]
    assert json.loads(ask(launcher, packet))["refused"]["code"] == code
    assert launcher.client.hello()


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_starts_are_refused(launcher: LauncherProcess, name: str) -> None:
    good = json.loads(protocol.encode_start(launcher.request("run", "true")))
    answer = json.loads(ask(launcher, json.dumps({**good, **MALFORMED[name]}).encode()))
    assert answer["refused"]["code"] == "bad_request"
    assert launcher.client.list() == ()


def test_a_request_at_the_limit_is_served_and_one_above_is_not_even_sent(launcher: LauncherProcess) -> None:
    room = protocol.MAX_REQUEST_BYTES - len(protocol.encode_start(launcher.request("run", "true", "")))
    assert launcher.client.start(launcher.request("run", "true", *["x" * 1000] * (room // 1004), "")).id == "run"
    with pytest.raises(LauncherError, match="exceeds the limit"):
        launcher.client.start(launcher.request("run", "true", "x" * (room + 1)))


def open_files(launcher: LauncherProcess) -> int:
    assert launcher.process is not None
    return len(list(Path(f"/proc/{launcher.process.pid}/fd").iterdir()))


def test_half_a_request_is_no_start_and_a_client_that_leaves_before_its_answer_loses_nothing(
    launcher: LauncherProcess,
) -> None:
    whole = protocol.encode_start(launcher.request("half", "true"))
    assert json.loads(ask(launcher, whole[: len(whole) // 2]))["refused"]["code"] == "bad_request"
    assert launcher.client.list() == ()
    with launcher.connection() as stream:
        stream.send(protocol.encode_start(launcher.request("left", "sleep", "1000")))
    wait_for(lambda: [one.id for one in launcher.client.list()] == ["left"], "the process runs without its client")
    assert launcher.client.start(launcher.request("left", "sleep", "1000")).id == "left", (
        "the answer is there for the next"
    )


def test_descriptors_that_a_client_passes_are_not_kept(launcher: LauncherProcess) -> None:
    with launcher.connection() as stream, Path(os.devnull).open() as passed:
        stream.send(protocol.encode_hello())
        assert stream.recv(protocol.MAX_ANSWER_BYTES)
        before = open_files(launcher)
        for _ in range(20):
            socket.send_fds(stream, [protocol.encode_hello()], [passed.fileno()] * 100)
            assert stream.recv(protocol.MAX_ANSWER_BYTES)
        assert open_files(launcher) <= before


def fill(stream: socket.socket) -> None:
    while True:
        stream.send(protocol.encode_hello())


def test_a_client_that_never_reads_holds_up_nobody(launcher: LauncherProcess) -> None:
    with launcher.connection() as stream:
        with pytest.raises(
            (BrokenPipeError, ConnectionResetError)
        ):  # dropped once its answers fill the kernel's buffer
            fill(stream)
        assert launcher.client.hello()


def test_a_client_asks_again_where_its_connection_has_ended_meanwhile(launcher: LauncherProcess) -> None:
    assert launcher.process is not None
    before_ms = launcher.client.hello().started_at_ms
    launcher.process.send_signal(signal.SIGHUP)
    wait_for(partial(restarted, launcher, before_ms), "the next image answers")
    assert launcher.client.hello().started_at_ms > before_ms


def test_clients_are_bounded(launcher: LauncherProcess) -> None:
    known, later = launcher.client, LauncherClient(launcher.socket)
    known.hello()
    silent = [launcher.connection() for _ in range(clients.MAX_CLIENTS)]
    with pytest.raises(LauncherError):
        later.hello()
    assert known.hello(), "a client keeps its connection"
    for stream in silent:
        stream.close()
    wait_for(lambda: restarted(launcher, 0), "it serves again")


def ask_as_nobody(path: Path) -> int:
    try:
        os.setuid(NOBODY)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
            stream.settimeout(DEADLINE_SECONDS)
            stream.connect(str(path))
            stream.send(protocol.encode_hello())
            return 1 if stream.recv(100) else 0
    except (BrokenPipeError, ConnectionResetError):
        return 0
    except OSError:
        return 2


@pytest.mark.skipif(os.getuid() != 0, reason="changing users needs root")
def test_the_socket_is_roots_by_mode_and_by_credentials(launcher: LauncherProcess) -> None:
    assert launcher.socket.stat().st_mode & 0o777 == 0o600
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        open_to_all = Path(directory) / "socket"
        Path(directory).chmod(0o755)
        os.link(launcher.socket, open_to_all)
        open_to_all.chmod(0o666)
        pid = os.fork()
        if pid == 0:
            os._exit(ask_as_nobody(open_to_all))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert "client_refused uid=65534" in launcher.errors.read_text()


@pytest.mark.parametrize("prepare", [Path.touch, Path.mkdir, Path.exists], ids=["a file", "a directory", "nothing"])
def test_an_absent_launcher_is_an_error_with_a_way_out(tmp_path: Path, prepare: Callable[[Path], object]) -> None:
    prepare(tmp_path / "launcher.sock")
    with pytest.raises(LauncherError, match=str(tmp_path / "launcher.sock")) as caught:
        LauncherClient(tmp_path / "launcher.sock").list()
    assert "systemctl reload nodeagent-launcher" in str(caught.value.hint)


# ---- both ends of the protocol


def test_both_ends_agree(launcher: LauncherProcess) -> None:
    assert (server.PROTOCOL, clients.MAX_REQUEST_BYTES) == (protocol.PROTOCOL, protocol.MAX_REQUEST_BYTES)
    assert tuple(StartStage) == shim.STAGES
    sent = json.loads(protocol.encode_start(launcher.request("run", "true", settings=(("nice", 1),))))
    assert sent.keys() - {"op"} == {field.name for field in dataclasses.fields(Order)}
    shown = {*Running.__struct_fields__, *Exited.__struct_fields__} - {"end"}
    kept = {field.name for field in dataclasses.fields(ProcessRecord)}
    assert kept - shown == {"grace_seconds", "exit_code", "signal", "core_dumped", "unknown"}
    assert shown <= kept


STATUS = '"id": "a", "pid": 1, "started_at_ms": 1, "cgroup": null, "start_ticks": 1, "boot_id": "b"'


@pytest.mark.parametrize(
    "packet",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"statuses": []}',
        b'{"statuses": [1], "more": false}',
        b'{"statuses": [{}], "more": false}',
        f'{{"statuses": [{{{STATUS}, "finished_at_ms": 2}}], "more": false}}'.encode(),
        f'{{"statuses": [{{{STATUS}, "finished_at_ms": 2, "unknown": "new"}}], "more": false}}'.encode(),
        f'{{"statuses": [{{{STATUS.replace("1", "true")}}}], "more": false}}'.encode(),
    ],
)
def test_unreadable_answers_are_errors(packet: bytes) -> None:
    decoders: list[Callable[[bytes], object]] = [protocol.decode_hello, protocol.decode_start, protocol.decode_list]
    for decode in [*decoders, protocol.decode_signal, protocol.decode_ack, protocol.decode_subscribe]:
        with pytest.raises(LauncherProtocolError):
            decode(packet)


def test_readable_counterpart_of_the_unreadable_answers() -> None:
    page = protocol.decode_list(f'{{"statuses": [{{{STATUS}}}], "more": false}}'.encode())
    assert page == protocol.Page((Running("a", 1, 1, "b", None, 1),), more=False)
