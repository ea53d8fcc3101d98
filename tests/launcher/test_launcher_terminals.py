"""Lines that the launcher writes to terminals for the agent. The terminals are real pseudoterminals of real sessions."""

import os
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nodeagent.edge.processes.launcher import LauncherError
from nodeagent.launcher.records import read_parent_and_start_ticks
from tests.support.launcher_process import LauncherProcess

OTHER = os.getuid() + 1


@pytest.fixture
def running(tmp_path: Path) -> Iterator[LauncherProcess]:
    launcher = LauncherProcess(tmp_path, tmp_path / "cgroup")
    launcher.run()
    yield launcher
    launcher.clean_up()


class Terminal:
    """A pseudoterminal with a session, whose leader waits for input."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.number = int(os.ttyname(self.slave).removeprefix("/dev/pts/"))
        self.leader = subprocess.Popen(
            ["setsid", "--ctty", "sh", "-c", "echo; read x"], stdin=self.slave, stdout=self.slave
        )
        assert os.read(self.master, 9), "the terminal is the session's once the shell has written"
        os.set_blocking(self.master, False)

    def shown(self) -> bytes:
        try:
            return os.read(self.master, 65536)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.end_leader()
        os.close(self.slave)
        os.close(self.master)

    def end_leader(self) -> None:
        self.leader.kill()
        self.leader.wait()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def tells(running: LauncherProcess, session: int, *, later: int = 0) -> bool:
    """Tell a session, which began at most at the time of this call, that its job has ended."""
    return running.client.tell(session, read_parent_and_start_ticks(session)[1] + later, "it has ended")


def test_a_line_is_written_to_the_terminal_of_the_session(running: LauncherProcess, terminal: Terminal) -> None:
    assert tells(running, terminal.leader.pid, later=1)
    assert terminal.shown().replace(b"\r\r\n", b"\r\n") == b"\r\nit has ended\r\n"


def test_a_later_process_with_the_number_of_the_leader_gets_nothing(
    running: LauncherProcess, terminal: Terminal
) -> None:
    assert not tells(running, terminal.leader.pid, later=-1)
    assert terminal.shown() == b""


def test_a_session_without_a_terminal_and_one_that_has_ended_get_nothing(
    running: LauncherProcess, terminal: Terminal
) -> None:
    with subprocess.Popen(["setsid", "sleep", "infinity"]) as alone:
        assert not tells(running, alone.pid)
        alone.kill()
    terminal.end_leader()
    assert not running.client.tell(terminal.leader.pid, 2**62, "it has ended")
    assert terminal.shown() == b""


IN_CONTAINER = """
import fcntl, os, struct, sys
TIOCSPTLCK, TIOCGPTN = 0x40045431, 0x80045430  # unlock it; its number
number, held = None, []
while number != int(sys.argv[1]):
    held.append(os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY))
    fcntl.ioctl(held[-1], TIOCSPTLCK, struct.pack("i", 0))
    (number,) = struct.unpack("i", fcntl.ioctl(held[-1], TIOCGPTN, bytes(4)))
os.setsid()
os.open(f"/dev/pts/{number}", os.O_RDWR)
print(os.getpid(), flush=True)
sys.stdin.read(1)
"""
"""Lead a session on the terminal with a given number of another devpts."""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_containers_terminal_is_not_the_hosts_of_the_same_number(
    running: LauncherProcess, terminal: Terminal, tmp_path: Path
) -> None:
    (tmp_path / "lead.py").write_text(IN_CONTAINER)
    own = 'mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts && exec "$@"'
    words = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        own,
        "sh",
        sys.executable,
        str(tmp_path / "lead.py"),
        str(terminal.number),
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as leader:
        assert leader.stdin is not None
        assert leader.stdout is not None
        session = int(leader.stdout.readline())
        device = int(Path(f"/proc/{session}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[4])
        assert device & 0xFF == terminal.number & 0xFF, "the kernel names both terminals by the same number"
        assert not tells(running, session)
        assert terminal.shown() == b""
        leader.stdin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_another_user_does_not_reach_a_terminal_by_mounting_one_of_the_same_number_elsewhere(
    running: LauncherProcess, terminal: Terminal, tmp_path: Path
) -> None:
    """Every user may mount in a user namespace. The leader's /dev/pts stays the host's."""
    with tempfile.TemporaryDirectory() as directory:  # unlike tmp_path, everybody can reach it
        Path(directory).chmod(0o755)
        program = IN_CONTAINER.replace("/dev/pts", directory)
        program = program.replace("number, held", f"os.setresuid({OTHER}, {OTHER}, {OTHER})\nnumber, held", 1)
        (tmp_path / "lead.py").write_text(program)
        own = f'mount -t devpts -o newinstance,ptmxmode=0666 devpts {directory} && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", own, "sh", sys.executable, str(tmp_path / "lead.py")]
        with subprocess.Popen([*words, str(terminal.number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as leader:
            assert leader.stdin is not None
            assert leader.stdout is not None
            assert not tells(running, int(leader.stdout.readline()))
            assert terminal.shown() == b""
            leader.stdin.close()


def test_a_terminal_that_takes_nothing_keeps_nobody_waiting(running: LauncherProcess, terminal: Terminal) -> None:
    """Nobody reads what was written before, or the user has stopped the output (Ctrl-S). The launcher answers further requests."""
    filling = os.open(f"/dev/pts/{terminal.number}", os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(filling, b"x" * 4096)
    os.close(filling)
    while tells(running, terminal.leader.pid):  # the kernel makes a little room when it moves what was written
        pass
    while terminal.shown():
        pass
    termios.tcflow(terminal.slave, termios.TCOOFF)
    assert not tells(running, terminal.leader.pid)
    termios.tcflow(terminal.slave, termios.TCOON)
    assert tells(running, terminal.leader.pid)


@pytest.mark.parametrize(
    "wrong",
    [
        {"session": 0},
        {"session": -1},
        {"session": "1"},
        {"session": True},
        {"ticks": "0"},
        {"ticks": None},
        {"line": ""},
        {"line": "two\nlines"},
        {"line": "\x1b[2J"},
        {"line": "\x9b2J"},
        {"line": "x" * 401},
        {"line": 5},
        {"line": None},
    ],
)
def test_what_could_command_a_terminal_is_refused(
    running: LauncherProcess, terminal: Terminal, wrong: dict[str, Any]
) -> None:
    asked = {"session": terminal.leader.pid, "ticks": 2**62, "line": "it has ended", **wrong}
    with pytest.raises(LauncherError, match="bad_request"):
        running.client.tell(**asked)
    assert terminal.shown() == b""
