"""Lines that the launcher writes to terminals for the agent. The terminals are real pseudoterminals."""

import os
import pty
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nodeagent.edge.processes.launcher import LauncherError
from tests.support.launcher_process import LauncherProcess

OTHER = os.getuid() + 1


@pytest.fixture
def running(tmp_path: Path) -> Iterator[LauncherProcess]:
    launcher = LauncherProcess(tmp_path, tmp_path / "cgroup")
    launcher.run()
    yield launcher
    launcher.clean_up()


class Terminal:
    def __init__(self) -> None:
        self.master, self.slave = pty.openpty()
        self.number = int(os.ttyname(self.slave).removeprefix("/dev/pts/"))
        os.set_blocking(self.master, False)

    def shown(self) -> bytes:
        try:
            return os.read(self.master, 65536)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        os.close(self.slave)
        os.close(self.master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.close()


def test_a_line_is_written_to_the_terminal_of_one_of_the_users(running: LauncherProcess, terminal: Terminal) -> None:
    assert running.client.tell(terminal.number, [OTHER, os.getuid()], "it has ended")
    assert terminal.shown().replace(b"\r\r\n", b"\r\n") == b"\r\nit has ended\r\n"


def test_another_users_terminal_gets_nothing(running: LauncherProcess, terminal: Terminal) -> None:
    assert not running.client.tell(terminal.number, [OTHER], "it has ended")
    assert not running.client.tell(terminal.number, [], "it has ended")
    assert terminal.shown() == b""


def test_a_terminal_that_takes_nothing_keeps_nobody_waiting(running: LauncherProcess, terminal: Terminal) -> None:
    """Nobody reads what was written before, or the user has stopped the output (Ctrl-S). The launcher answers further requests."""
    os.set_blocking(terminal.slave, False)
    with suppress(BlockingIOError):
        while True:
            os.write(terminal.slave, b"x" * 4096)
    assert not running.client.tell(terminal.number, [os.getuid()], "it has ended")
    while terminal.shown():
        pass
    termios.tcflow(terminal.slave, termios.TCOOFF)
    assert not running.client.tell(terminal.number, [os.getuid()], "it has ended")
    termios.tcflow(terminal.slave, termios.TCOON)
    assert running.client.tell(terminal.number, [os.getuid()], "it has ended")


def test_a_terminal_that_is_gone_or_closing_gets_nothing(running: LauncherProcess) -> None:
    gone, closing = Terminal(), Terminal()
    gone.close()
    os.close(closing.master)
    assert not running.client.tell(gone.number, [os.getuid()], "it has ended")
    assert not running.client.tell(closing.number, [os.getuid()], "it has ended")
    os.close(closing.slave)


@pytest.mark.parametrize(
    "wrong",
    [
        {"terminal": -1},
        {"terminal": 2**20},
        {"terminal": "0"},
        {"terminal": True},
        {"users": 0},
        {"users": ["0"]},
        {"users": [False]},
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
    asked = {"terminal": terminal.number, "users": [os.getuid()], "line": "it has ended", **wrong}
    with pytest.raises(LauncherError, match="bad_request"):
        running.client.tell(**asked)
    assert terminal.shown() == b""
