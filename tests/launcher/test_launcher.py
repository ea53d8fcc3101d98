"""What the launcher starts, and how it tells. Plain directories stand for cgroups: only cgroup.procs is ever written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.model.kernel_limits import MOST_CPUS
from nodeagent.edge.processes.launcher import Changes, LauncherError
from nodeagent.formats.wire import launcher_protocol as protocol
from nodeagent.formats.wire.launcher_protocol import (
    MAX_ANSWER_BYTES,
    Killed,
    Returned,
    Running,
    StartFailed,
    StartStage,
    decode_start,
    encode_start,
)
from nodeagent.launcher.records import read_parent_and_start_ticks
from tests.support.launcher_process import DEADLINE_SECONDS, LauncherProcess, command_after, wait_for

NOBODY = 65534
root_only = pytest.mark.skipif(os.getuid() != 0, reason="changing users needs root")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LauncherProcess]:
    launcher = LauncherProcess(tmp_path, tmp_path / "cgroup")
    yield launcher
    launcher.clean_up()


@pytest.fixture
def running(launcher: LauncherProcess) -> LauncherProcess:
    launcher.run()
    return launcher


def test_is_in_its_cgroup_at_its_first_instruction(running: LauncherProcess) -> None:
    output = running.output_of("sh", "-c", 'cat "$0"; echo " $$"', str(running.container / "cgroup.procs"))
    written, own = output.split()
    assert written == own


def test_environment_is_exactly_what_was_given(running: LauncherProcess) -> None:
    env = (("B", "zwei\n=2"), ("A", "\udce9"))  # not UTF-8 either: bytes of a file's name
    output = running.output_of("/usr/bin/env", "-0", env=env)
    assert sorted(output.split("\0")) == ["", "A=\udce9", "B=zwei\n=2"]


def test_default_path_finds_the_program_and_is_not_passed_on(running: LauncherProcess) -> None:
    assert running.output_of("env", env=(("A", "1"),)) == "A=1\n"


def test_path_is_searched_as_execvp_does(running: LauncherProcess, tmp_path: Path) -> None:
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "prog").write_text("#!/bin/sh\necho found $0\n")
        (tmp_path / name / "prog").chmod(mode)
    path = f"/nonexistent:/etc/passwd:{tmp_path / 'first'}:{tmp_path / 'second'}"
    assert running.output_of("prog", env=(("PATH", path),)) == f"found {tmp_path / 'second' / 'prog'}\n"


def test_a_relative_program_is_found_from_the_working_directory(running: LauncherProcess, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\npwd\n")
    (tmp_path / "here").chmod(0o755)
    assert running.output_of("./here", cwd=str(tmp_path)) == f"{tmp_path}\n"


def test_process_inherits_nothing_of_the_launcher(launcher: LauncherProcess) -> None:
    launcher.run(command_with_something_to_inherit())
    status = dict(line.split(":\t", 1) for line in launcher.output_of("cat", "/proc/self/status").splitlines())
    assert [int(status[field], 16) & ~OF_THE_C_LIBRARY for field in ("SigBlk", "SigIgn", "SigCgt")] == [0, 0, 0]
    assert status["Umask"] == "0022"
    launcher.output.unlink()
    assert launcher.output_of("ls", "/proc/self/fd").split() == ["0", "1", "2", "3"]  # 3 is that directory
    launcher.output.unlink()
    pid, _, _, _, group, session, tty, *_ = launcher.output_of("cat", "/proc/self/stat").split()
    assert (group, session, tty) == (pid, pid, "0")
    launcher.output.unlink()
    limits = launcher.output_of("cat", "/proc/self/limits")
    assert next(line.split()[3] for line in limits.splitlines() if line.startswith("Max open files")) == "1024"
    launcher.output.unlink()
    assert launcher.output_of("readlink", "/proc/self/cwd", "/proc/self/fd/0") == "/\n/dev/null\n"


OF_THE_C_LIBRARY = 1 << 31 | 1 << 32
"""Signals 32 and 33: the C library keeps them for its threads and lets nobody set them, so they come from whoever started the tests."""


def command_with_something_to_inherit() -> tuple[str, ...]:
    """A launcher that was itself started with an ignored signal and an open file."""
    code = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.dup2(os.open('/', 0), 900)"
    code += "; os.umask(0o77); os.execv(sys.executable, [sys.executable, '-I', '-m', *sys.argv[1:]])"
    return (sys.executable, "-I", "-c", code, "nodeagent.launcher")


def test_process_has_the_settings_that_were_asked_for_and_the_launcher_keeps_its_own(running: LauncherProcess) -> None:
    asked = (("aslr", False), ("transparentHugePages", False), ("nice", 19), ("scheduler", "batch"))
    seen = running.output_of("cat", "/proc/self/personality", "/proc/self/stat", "/proc/self/status", settings=asked)
    personality, stat, *_ = seen.splitlines()
    assert int(personality, 16) == 0x0040000
    assert (stat.split()[18], stat.split()[40]) == ("19", str(os.SCHED_BATCH))
    assert "THP_enabled:\t0\n" in seen
    running.output.unlink()
    personality, stat, *_ = running.output_of("cat", "/proc/self/personality", "/proc/self/stat").splitlines()
    assert int(personality, 16) == 0
    assert (stat.split()[18], stat.split()[40]) == (str(os.nice(0)), str(os.sched_getscheduler(0)))


@root_only
def test_process_can_be_killed_for_memory_though_the_launcher_can_not(running: LauncherProcess) -> None:
    assert running.process is not None
    try:
        Path(f"/proc/{running.process.pid}/oom_score_adj").write_text("-900")
    except PermissionError:
        pytest.skip("no CAP_SYS_RESOURCE here")
    assert running.output_of("cat", "/proc/self/oom_score_adj") == "0\n"


@root_only
@pytest.mark.parametrize(
    ("uid", "gid", "groups", "expected"),
    [
        pytest.param(NOBODY, NOBODY, (), ["65534", "65534", "65534"], id="user and group"),
        pytest.param(NOBODY, None, (), ["65534", "0", "0"], id="user only keeps no supplementary group"),
        pytest.param(None, 7, (), ["0", "7", "7"], id="group only"),
        pytest.param(NOBODY, 7, (8, 9), ["65534", "7", "7", "8", "9"], id="supplementary groups"),
    ],
)
def test_user_and_groups(
    running: LauncherProcess, uid: int | None, gid: int | None, groups: tuple[int, ...], expected: list[str]
) -> None:
    changes = {"uid": uid, "gid": gid, "groups": groups, "env": ()}
    assert running.output_of("sh", "-c", "id -u; id -g; id -G", **changes).split() == expected


@root_only
def test_a_dropped_user_cannot_come_back(running: LauncherProcess) -> None:
    status = running.output_of("cat", "/proc/self/status", uid=NOBODY, gid=NOBODY)
    assert "Uid:\t65534\t65534\t65534\t65534" in status
    assert "CapEff:\t0000000000000000" in status


FAILURES: dict[str, tuple[StartStage, int, dict[str, Any]]] = {
    "missing program": (StartStage.EXEC, errno.ENOENT, {"argv": ("/nonexistent/program",)}),
    "program not in PATH": (StartStage.EXEC, errno.ENOENT, {"argv": ("nonesuch",)}),
    "not executable": (StartStage.EXEC, errno.EACCES, {"argv": ("/etc/passwd",)}),
    "a directory": (StartStage.EXEC, errno.EACCES, {"argv": ("/etc",)}),
    "no executable format": (StartStage.EXEC, errno.ENOEXEC, {"argv": ("{tmp}/garbage",)}),
    "missing working directory": (StartStage.CWD, errno.ENOENT, {"cwd": "/nonexistent"}),
    "working directory is a file": (StartStage.CWD, errno.ENOTDIR, {"cwd": "/etc/passwd"}),
    "missing cgroup": (StartStage.CGROUP, errno.ENOENT, {"cgroup": "{tmp}/cgroup/gone"}),
    "cgroup without cgroup.procs": (StartStage.CGROUP, errno.ENOENT, {"cgroup": "{tmp}/cgroup/pod1"}),
    "no journal and no log file": (StartStage.OUTPUT, errno.ENOENT, {"log_file": None}),
    "log file's directory is a file": (StartStage.OUTPUT, errno.EEXIST, {"log_file": "{tmp}/garbage/log"}),
    "log file is a symlink": (StartStage.OUTPUT, errno.ELOOP, {"log_file": "{tmp}/link"}),
    "settings that the kernel refuses": (StartStage.SETTINGS, errno.EINVAL, {"settings": (("scheduler", "fifo:100"),)}),
    "settings that are none": (StartStage.SETTINGS, errno.EINVAL, {"settings": (("nice", "much"),)}),
    "user is no number": (StartStage.USER, errno.EINVAL, {"uid": "root"}),
    "user is out of bounds": (StartStage.USER, errno.EINVAL, {"uid": 2**40}),
    "NUL in an argument": (StartStage.EXEC, errno.EINVAL, {"argv": ("true", "a\0b")}),
    "variable without a name": (StartStage.EXEC, errno.EINVAL, {"env": (("", "x"),)}),
    "record can't be written": (StartStage.FORK, errno.EISDIR, {"id": "blocked"}),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failed_start(running: LauncherProcess, tmp_path: Path, name: str) -> None:
    stage, number, changes = FAILURES[name]
    (tmp_path / "garbage").write_bytes(b"\1\2\3")
    (tmp_path / "garbage").chmod(0o755)
    (tmp_path / "link").symlink_to("/dev/null")
    (running.state / "blocked.json").mkdir()
    placed = {k: v.format(tmp=tmp_path) if isinstance(v, str) else v for k, v in changes.items() if k != "argv"}
    argv = tuple(text.format(tmp=tmp_path) for text in changes.get("argv", ("true",)))
    run_id = str(placed.pop("id", "run"))

    answer = running.client.start(running.request(run_id, *argv, **placed))

    assert isinstance(answer, StartFailed)
    assert (answer.id, answer.stage, answer.errno) == (run_id, stage, number)
    assert answer.message
    assert running.client.list() == ()
    assert not (running.container.parent / "cgroup.procs").exists()
    (running.state / "blocked.json").rmdir()
    assert sorted(path.name for path in running.state.iterdir() if path.suffix != ".tmp") == []
    wait_for(lambda: not children_of(running), "the shim is reaped")
    running.start(run_id, "true")  # nothing is remembered: the same id may be tried again


def children_of(launcher: LauncherProcess) -> list[int]:
    assert launcher.process is not None
    return [
        int(pid)
        for pid in Path(f"/proc/{launcher.process.pid}/task/{launcher.process.pid}/children").read_text().split()
    ]


@pytest.mark.parametrize(
    ("script", "end"),
    [
        ("exit 0", Returned(0)),
        ("exit 7", Returned(7)),
        ("exit 255", Returned(255)),
        ("kill -KILL $$", Killed(signal.SIGKILL, core_dumped=False)),
        ("kill -TERM $$", Killed(signal.SIGTERM, core_dumped=False)),
    ],
)
def test_end_is_kept(running: LauncherProcess, script: str, end: Returned | Killed) -> None:
    started = running.start("run", "sh", "-c", script)
    exited = running.end_of("run")
    assert exited.end == end
    assert exited.exit_code == (end.code if isinstance(end, Returned) else 128 + end.signal)
    assert (exited.pid, exited.cgroup, exited.started_at_ms) == (started.pid, started.cgroup, started.started_at_ms)
    assert exited.finished_at_ms >= exited.started_at_ms
    record = json.loads((running.state / "run.json").read_bytes())
    assert record["finished_at_ms"] == exited.finished_at_ms


def test_an_id_starts_once(running: LauncherProcess, tmp_path: Path) -> None:
    script = 'echo started >>"$0"; sleep 1000'
    first = running.start("run", "sh", "-c", script, str(tmp_path / "count"))
    assert running.client.start(running.request("run", "false")) == first
    assert running.client.signal("run", signal.SIGKILL)
    end = running.end_of("run")
    assert running.client.start(running.request("run", "false")) == end
    assert running.client.signal("run", signal.SIGKILL) is False
    assert running.client.ack(["run", "run", "other"]) == ("run",)
    second = running.start("run", "sleep", "1000")
    assert (second.pid, second.start_ticks) != (first.pid, first.start_ticks)


def test_ack_forgets_ends_only(running: LauncherProcess) -> None:
    running.start("a/1", "sleep", "1000")
    running.start("a/2", "true")
    running.end_of("a/2")
    assert {path.name for path in running.state.glob("*.json")} == {"a%2F1.json", "a%2F2.json"}
    assert running.client.ack(["a/1", "a/2"]) == ("a/2",)
    assert [status.id for status in running.client.list()] == ["a/1"]
    assert {path.name for path in running.state.glob("*.json")} == {"a%2F1.json"}
    assert running.client.ack(["a/1", "a/2"]) == ()


def test_list_is_whole_and_ordered_however_long(running: LauncherProcess) -> None:
    ids = [f"run{n}" for n in range(230)]
    for run_id in ids:
        running.start(run_id, "true")
    assert [status.id for status in running.client.list()] == sorted(ids)
    for run_id in ids:
        running.end_of(run_id)
    assert running.client.ack(ids) == tuple(ids)
    assert running.client.list() == ()


def test_an_answer_has_only_what_has_changed(running: LauncherProcess) -> None:
    first = running.start("a", "sleep", "1000")
    whole = running.client.list_changes("")
    assert (whole.statuses, whole.gone, whole.is_whole) == ((first,), (), True)
    assert running.client.list_changes(whole.token) == Changes((), (), whole.token, is_whole=False)
    second = running.start("b", "true")
    end = running.end_of("b")
    changed = running.client.list_changes(whole.token)
    assert (changed.statuses, changed.gone, changed.is_whole) == ((end,), (), False)
    assert end.id == second.id
    running.client.ack(["b"])
    forgotten = running.client.list_changes(changed.token)
    assert (forgotten.statuses, forgotten.gone, forgotten.is_whole) == ((), ("b",), False)
    running.kill()
    running.run()
    again = running.client.list_changes(forgotten.token)
    assert (again.statuses, again.gone, again.is_whole) == ((first,), (), True)


def test_changes_of_any_number_come_in_parts(running: LauncherProcess) -> None:
    token = running.client.list_changes("").token
    ids = {f"run{n}" for n in range(230)}
    for run_id in ids:
        running.start(run_id, "true")
    changed = running.client.list_changes(token)
    assert {status.id for status in changed.statuses} == ids
    assert not changed.is_whole
    for run_id in ids:
        running.end_of(run_id)
    assert running.client.ack(ids)
    assert set(running.client.list_changes(changed.token).gone) == ids


def test_an_older_launcher_lists_everything_each_time(
    running: LauncherProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the token, and has none in its answer."""
    monkeypatch.setattr(
        protocol, "encode_list", lambda _since, after: json.dumps({"op": "list", "after": after}).encode()
    )
    ids = [f"run{n:03}" for n in range(120)]
    for run_id in ids:
        running.start(run_id, "sleep", "1000")
    for _ in range(2):
        changes = running.client.list_changes("")
        assert [status.id for status in changes.statuses] == ids
        assert (changes.token, changes.is_whole) == ("", True)


START_DEADLINE = "from nodeagent.launcher import server; server.START_DEADLINE_SECONDS = {seconds}"


def test_a_start_that_hangs_holds_up_nobody_and_is_answered_to_all_who_asked(
    launcher: LauncherProcess, tmp_path: Path
) -> None:
    launcher.run(command_after(START_DEADLINE.format(seconds=1000)))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # opening it to write waits for a reader
    request = encode_start(launcher.request("slow", "true", log_file=str(fifo)))
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(launcher.connection()) for _ in range(2)]
        for client in clients:
            client.send(request)
        wait_for(lambda: all(is_taken(client) for client in clients), "both have asked")
        assert launcher.start("quick", "true").id == "quick"
        assert select.select(clients, [], [], 0)[0] == []
        with fifo.open("rb"):
            first, second = (client.recv(MAX_ANSWER_BYTES) for client in clients)
    assert first == second
    assert isinstance(decode_start(first), Running)


def is_taken(client: socket.socket) -> bool:
    """Its peer has read all that it sent."""
    unread = fcntl.ioctl(client, termios.TIOCOUTQ, bytes(4))  # unix(7) has it as SIOCOUTQ, the same number
    return not any(unread)


def test_a_start_that_hangs_for_too_long_has_failed(launcher: LauncherProcess, tmp_path: Path) -> None:
    launcher.run(command_after(START_DEADLINE.format(seconds=0.3)))
    os.mkfifo(tmp_path / "fifo")
    answer = launcher.client.start(launcher.request("slow", "true", log_file=str(tmp_path / "fifo")))
    assert isinstance(answer, StartFailed)
    assert (answer.stage, answer.errno) == (StartStage.DEADLINE, errno.ETIMEDOUT)
    assert launcher.client.list() == ()
    wait_for(lambda: not children_of(launcher), "the shim is killed and reaped")


@pytest.mark.parametrize(
    "cgroup",
    [
        pytest.param("{root}", id="the root itself"),
        pytest.param("{root}/holder", id="the holder"),
        pytest.param("{tmp}/outside", id="outside"),
        pytest.param("{root}/../outside", id="dots"),
        pytest.param("{root}/pod1/../pod1/main", id="dots that stay inside"),
        pytest.param("{root}/link", id="symlink to outside"),
        pytest.param("{root}/pod1/inner", id="symlink to inside"),
        pytest.param("{root}/pod1/main/", id="trailing slash"),
        pytest.param("{root}//pod1/main", id="doubled slash"),
        pytest.param("{root}-other/pod", id="a prefix only"),
        pytest.param("pod1/main", id="relative"),
        pytest.param("", id="empty"),
        pytest.param(None, id="none"),
    ],
)
def test_nothing_starts_outside_its_cgroup(running: LauncherProcess, tmp_path: Path, cgroup: str | None) -> None:
    root = tmp_path / "cgroup"
    for directory in (root, root / "holder", tmp_path / "outside", tmp_path / "cgroup-other" / "pod"):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").touch()
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "pod1" / "inner").symlink_to(running.container)
    path = cgroup and cgroup.format(root=root, tmp=tmp_path)
    with pytest.raises(LauncherError, match="outside_cgroup"):
        running.client.start(running.request("run", "true", cgroup=path))
    assert [file for file in tmp_path.rglob("cgroup.procs") if file.read_bytes()] == []
    assert running.client.list() == ()


@pytest.mark.parametrize("kind", ["root", "isolated"])
def test_a_partition_begins_with_the_launchers_rights(running: LauncherProcess, kind: str) -> None:
    file = running.container / "cpuset.cpus.partition"
    file.touch()
    running.client.begin_partition(running.container, kind)
    assert file.read_text() == kind


@pytest.mark.parametrize(
    ("cgroup", "kind", "why"),
    [
        ("{root}", "root", "outside_cgroup"),
        ("{root}/holder", "root", "outside_cgroup"),
        ("{tmp}/outside", "root", "outside_cgroup"),
        ("{root}/../outside", "root", "outside_cgroup"),
        ("{root}/link", "root", "outside_cgroup"),
        ("outside", "root", "outside_cgroup"),
        ("{root}/pod1/main", "member", "bad_request"),
        ("{root}/pod1/main", "0-3", "bad_request"),
        ("{root}/pod1/main\0", "root", "bad_request"),
        ("{root}/pod1/none", "root", "not_written"),
        ("{root}/pod1", "root", "not_written"),
    ],
)
def test_nothing_but_partitions_of_pods_is_written(
    running: LauncherProcess, tmp_path: Path, cgroup: str, kind: str, why: str
) -> None:
    root = tmp_path / "cgroup"
    for directory in (root, root / "holder", tmp_path / "outside", running.container):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cpuset.cpus.partition").touch()
    (root / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(LauncherError, match=why):
        running.client.begin_partition(Path(cgroup.format(root=root, tmp=tmp_path)), kind)
    assert [file for file in tmp_path.rglob("cpuset.cpus.partition") if file.read_bytes()] == []


def test_threads_that_may_run_elsewhere_are_gathered_with_the_launchers_rights(running: LauncherProcess) -> None:
    mine = os.sched_getaffinity(0)
    (running.container / "cpuset.cpus.effective").write_text("8191\n")
    (running.container / "payload").mkdir()
    (running.container / "payload/cgroup.threads").write_text(f"{os.getpid()}\n4194305\n")
    os.sched_setaffinity(0, {min(mine)})
    try:
        running.client.gather(running.container)
        assert os.sched_getaffinity(0) == mine, "all that the kernel lets it have"
        (running.container / "cpuset.cpus.effective").write_text(f"0-{MOST_CPUS - 1}\n")
        os.sched_setaffinity(0, {min(mine)})
        running.client.gather(running.container)
        assert os.sched_getaffinity(0) == {min(mine)}, "who is at home is left alone"
    finally:
        os.sched_setaffinity(0, mine)


@pytest.mark.parametrize(
    ("cgroup", "why"),
    [("{root}", "outside_cgroup"), ("{root}/../x", "outside_cgroup"), ("{root}/pod1/none", "not_written")],
)
def test_nobody_elses_threads_are_gathered(running: LauncherProcess, tmp_path: Path, cgroup: str, why: str) -> None:
    with pytest.raises(LauncherError, match=why):
        running.client.gather(Path(cgroup.format(root=tmp_path / "cgroup")))


def test_without_cgroups_none_can_be_asked_for(tmp_path: Path) -> None:
    launcher = LauncherProcess(tmp_path, None)
    try:
        launcher.run()
        assert launcher.client.hello().cgroup is None
        assert launcher.output_of("echo", "free") == "free\n"
        with pytest.raises(LauncherError, match="outside_cgroup"):
            launcher.client.start(launcher.request("run", "true", cgroup="/sys/fs/cgroup/pod"))
    finally:
        launcher.clean_up()


def test_output_goes_to_the_journal_in_order(tmp_path: Path) -> None:
    launcher = LauncherProcess(tmp_path, tmp_path / "nodeagent-pods.service")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as journal:
        journal.bind(str(launcher.journal))
        journal.listen()
        journal.settimeout(DEADLINE_SECONDS)
        try:
            launcher.run()
            launcher.start("run", "sh", "-c", "echo one; echo two >&2; echo '<3>three'", identifier="web/nginx")
            with journal.accept()[0] as stream:
                received = b"".join(iter(lambda: stream.recv(4096), b""))
        finally:
            launcher.clean_up()
    header = b"web/nginx\nnodeagent-pods.service\n6\n1\n0\n0\n0\n"
    assert received == header + b"one\ntwo\n<3>three\n"
    assert not launcher.output.exists()


def test_log_file_is_appended_to_and_private(running: LauncherProcess) -> None:
    running.output_of("echo", "one")
    running.output_of("echo", "two")
    assert running.output.read_text() == "one\ntwo\n"
    assert running.output.stat().st_mode & 0o777 == 0o640


def test_environment_and_arguments_are_not_logged(running: LauncherProcess) -> None:
    running.output_of("sh", "-c", ": token-in-argument", env=(("PASSWORD", "hunter2"),))
    logged = running.errors.read_text()
    assert 'starting id="output"' in logged
    assert "exited" in logged
    assert "hunter2" not in logged
    assert "token-in-argument" not in logged


def test_orphans_are_adopted_and_reaped(running: LauncherProcess, tmp_path: Path) -> None:
    assert running.process is not None
    running.start("run", "sh", "-c", 'sleep 1000 & echo $! >"$0"', str(tmp_path / "pid"))
    running.end_of("run")
    orphan = int((tmp_path / "pid").read_text())
    assert read_parent_and_start_ticks(orphan)[0] == running.process.pid
    os.kill(orphan, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{orphan}").exists(), "no zombie is left")


def pythons() -> list[str]:
    """Those of the versions it may run on that are on this host: Debian 13's runs it in its guests."""
    found = [shutil.which(f"python3.{minor}") for minor in range(11, 20)]
    return [python for python in found if python and subprocess.run([python, "-c", ""], check=False).returncode == 0]


@pytest.mark.parametrize("python", [sys.executable, *pythons()])
def test_runs_on_every_python_that_is_here(launcher: LauncherProcess, python: str) -> None:
    """The standard library is all it needs: no virtual environment, and no site packages."""
    repository = Path(__file__).parents[2]
    find = f"import sys; sys.path.insert(0, {str(repository)!r})"
    launcher.run(command_after(find, (python, "-I", "-S", "-W", "error")))
    launcher.start("run", "sh", "-c", "exit 3")
    assert launcher.end_of("run").end == Returned(3)
