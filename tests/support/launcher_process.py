"""A launcher of the tests' own, in a directory of its own, and what they ask of the kernel about its processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nodeagent.edge.processes.launcher import LauncherClient, LauncherError
from nodeagent.formats.wire.launcher_protocol import Exited, Running, StartRequest
from nodeagent.launcher.records import read_parent_and_start_ticks
from tests.support.explained_events import explained_events

T = TypeVar("T")
DEADLINE_SECONDS = 30.0
PYTHON = (sys.executable, "-I")
MODULE = (*PYTHON, "-m", "nodeagent.launcher")


def wait_for(probe: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := probe()) is None or found is False:
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.005)
    return found


def command_after(statements: str, python: Sequence[str] = PYTHON) -> tuple[str, ...]:
    """The launcher's command, in a process that has run these statements before."""
    return (*python, "-c", f"{statements}; import runpy; runpy.run_module('nodeagent.launcher', run_name='__main__')")


class LauncherProcess:
    def __init__(self, directory: Path, root: Path | None) -> None:
        self.directory = directory
        self.root = root
        self.container = directory / "none" if root is None else root / "pod1" / "main"
        self.state = directory / "state"
        self.socket = directory / "launcher.sock"
        self.journal = directory / "journal"
        self.output = directory / "output.log"
        self.errors = directory / "launcher.log"
        self.client = LauncherClient(self.socket)
        self.process: subprocess.Popen[bytes] | None = None
        if root is not None:
            self.container.mkdir(parents=True)
            (self.container / "cgroup.procs").touch()

    def run(self, command: Sequence[str] = MODULE, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start the launcher and wait until it answers."""
        arguments = ["--socket", str(self.socket), "--state-dir", str(self.state), "--journal", str(self.journal)]
        if self.root is not None:
            arguments += ["--cgroup", str(self.root)]
        with self.errors.open("ab") as errors:
            process = subprocess.Popen([*command, *arguments], stderr=errors, env={**os.environ, **(env or {})})
        self.process = process
        wait_for(lambda: self.answers() or process.poll() is not None, "the launcher answers")
        assert process.poll() is None, self.errors.read_text()
        return process

    def answers(self) -> bool:
        try:
            return self.process is not None and self.client.hello().pid == self.process.pid
        except LauncherError:  # it isn't listening yet
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)

    def connection(self) -> socket.socket:
        """For what the agent's client never does: send other packets, ask without waiting, not read the answer."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        stream.settimeout(DEADLINE_SECONDS)
        stream.connect(str(self.socket))
        return stream

    def request(self, run_id: str, *argv: str, **changes: object) -> StartRequest:
        fields: dict[str, Any] = {  # the tests break types on purpose
            "id": run_id,
            "argv": argv,
            "env": (("PATH", os.environ["PATH"]),),
            "identifier": "pod1/main",
            "cgroup": None if self.root is None else str(self.container),
            "log_file": str(self.output),
            "grace_seconds": 1,
        }
        return StartRequest(**{**fields, **changes})

    def start(self, run_id: str, *argv: str, **changes: object) -> Running:
        answer = self.client.start(self.request(run_id, *argv, **changes))
        assert isinstance(answer, Running), answer
        return answer

    def end_of(self, run_id: str) -> Exited:
        def probe() -> Exited | None:
            return next((s for s in self.client.list() if s.id == run_id and isinstance(s, Exited)), None)

        return wait_for(probe, f"{run_id} ends")

    def output_of(self, *argv: str, **changes: object) -> str:
        """What a process that ends by itself has written."""
        self.start("output", *argv, **changes)
        end = self.end_of("output")
        self.client.ack(["output"])
        text = self.output.read_text(errors="surrogateescape")
        assert end.exit_code == 0, text
        return text

    def logged(self) -> set[str]:
        """Names of the events in its log."""
        return set(re.findall(r"^([a-z_]+)(?: [a-z_]+=.*)?$", self.errors.read_text(), re.MULTILINE))

    def clean_up(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for path in self.state.glob("*.json"):
            try:
                record = json.loads(path.read_bytes())
                if read_parent_and_start_ticks(record["pid"])[1] == record["start_ticks"]:
                    os.kill(record["pid"], signal.SIGKILL)
            except (OSError, ValueError, KeyError, IndexError):
                continue  # gone already, or a record that a test broke


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LauncherProcess]:
    launcher = LauncherProcess(tmp_path, tmp_path / "cgroup")
    launcher.run()
    yield launcher
    launcher.clean_up()
    assert launcher.logged() <= explained_events()
