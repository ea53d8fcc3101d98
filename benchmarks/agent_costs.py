"""Counts of the agent's process and the launcher: syncs of a pod, a look at runs, a start, and the work of a restart beside its turns."""

import json
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any
from unittest import mock

from benchmarks import ROOT
from benchmarks.goals import Row
from nodeagent.core.model.config import Config
from nodeagent.daemon.sources.kept_manifests import KeptManifests
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.edge.files.manifest_watch import ManifestWatch
from nodeagent.formats.wire.launcher_protocol import StartRequest, encode_start
from nodeagent.launcher.records import ProcessRecord, Runs
from nodeagent.launcher.server import Launcher
from tests.support.daemon_model import Daemon, HostSettingsModel, Tree
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, node

_PROGRAM = str(ROOT / "nodeagent")
_SYSTEM = {"posix", "socket", "_socket", "select", "fcntl", "resource", "_io"}
"""Modules whose functions call the system."""
_MANIFEST = (
    "apiVersion: v1\nkind: Pod\nmetadata: {{name: p{}}}\nspec: {{containers: [{{name: app, command: [run]}}]}}\n"
)


def counted(name: str, count: int, compared: str) -> Row:
    return Row("counts", name, count, count, None, compared, unit="")


def syncs() -> Iterator[Row]:
    """Count the calls that sync, of a pod with exclusive CPUs. docs/reliability.md has the promise that each one protects."""
    with TemporaryDirectory() as directory:
        daemon = Daemon(Machine(node(SMALL)), Path(directory))
        daemon.start()
        daemon.rest()
        for what, pods, compared in (("comes", (pod("a", app("app", "2")),), "6"), ("goes", (), "8")):
            with mock.patch.object(os, "fsync") as synced:
                daemon.files.pods = pods
                daemon.rest()
            yield counted(f"syncs of a pod that {what}", synced.call_count, compared)


def launcher() -> Iterator[Row]:
    """Count the bytes of the launcher's answer where nothing has changed since the last look."""
    for count, compared in ((0, "31"), (400, "86,803")):
        runs = Runs()
        for number in range(count):
            runs[str(number)] = ProcessRecord(str(number), 1, 1, "boot", None, 30, 1)
        answer = runs.list_changes(f"{runs.epoch}:{count:03}", 100)
        yield counted(f"bytes of a look at {count} runs at rest", len(json.dumps(answer)), compared)


def launcher_start() -> Iterator[Row]:
    """Count the calls of the system for a start: those of the launcher, and those of its child from fork to exec."""
    with TemporaryDirectory() as directory, ExitStack() as undo:
        listener, client = (undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in range(2))
        listener.bind(f"{directory}/launcher.sock")
        listener.listen()
        launcher = Launcher(None, Path(directory), f"{directory}/journal", listener)
        undo.callback(launcher.selector.close)
        launcher.clients.listen()
        client.connect(f"{directory}/launcher.sock")
        childs = Path(directory, "calls of the child")
        with system_calls(childs) as made:
            for run_id in ("first", "second"):
                client.send(encode_start(StartRequest(run_id, ("/bin/true",), (), "", None, log_file=os.devnull)))
                made.clear()
                while run_id not in launcher.runs:
                    for key, _ in launcher.selector.select():
                        key.data()
        for pid in launcher.children:
            os.waitpid(pid, 0)
        yield counted("calls of the system by the launcher at a start", len(made), "")
        yield counted("calls of the system by a started process until exec", len(childs.read_text().split()), "")


def isolation() -> Iterator[Row]:
    """Count how often the start of an isolated pod reads and writes settings of the host. Each write is a request to the launcher."""
    isolated = node(SMALL, config={"interrupt_isolation": "affinity", "host_isolation": "partition"})
    with TemporaryDirectory() as directory, ExitStack() as undo:
        daemon = Daemon(Machine(isolated), Path(directory))
        daemon.start()
        daemon.rest()
        read, write, change = (
            undo.enter_context(mock.patch.object(owner, name, autospec=True, side_effect=getattr(owner, name)))
            for owner, name in ((HostSettingsModel, "read"), (HostSettingsModel, "write"), (Tree, "apply"))
        )
        daemon.files.pods = (pod("a", app("app", "2")),)
        daemon.rest()
    yield counted("reads of the host's settings at an isolated start", read.call_count, "")
    yield counted("requests to write host settings at an isolated start", write.call_count, "")
    yield counted("writes of cgroups at an isolated start", change.call_count, "")


@contextmanager
def system_calls(childs: Path) -> Iterator[list[str]]:
    """Collect the names of called functions of the system. A child writes its own to a file before it executes another program.

    Handlers of signals don't count, as each test runner has others.
    """
    made: list[str] = []

    def note(_frame: FrameType, event: str, function: object) -> None:
        if event != "c_call":
            return
        name = getattr(function, "__name__", "")
        owner = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
        if owner in _SYSTEM and name != "fspath":
            made.append(name)
        if name == "execve":
            childs.write_text(" ".join(made[len(made) - made[::-1].index("fork") :]))

    sys.setprofile(note)
    try:
        yield made
    finally:
        sys.setprofile(None)


def restart() -> Iterator[Row]:
    """Count calls of the program's functions, of the read of the manifests and the state, and of the stop."""
    for count, compared in ((0, "624"), (100, "76,691")):
        with TemporaryDirectory() as directory:
            base = Path(directory)
            (base / "manifests").mkdir()
            (base / "state").mkdir()
            machine = Machine(node(SMALL))
            for number in range(count):
                (base / "manifests" / f"{number:03}.yaml").write_text(_MANIFEST.format(number))
            with started(machine, base) as daemon:
                daemon.rest()
                assert len(machine.running()) == count
            with calls() as made, started(machine, base):
                pass
            yield counted(f"calls of functions at a start and a stop beside {count} pods", sum(made), compared)


@contextmanager
def started(machine: Machine, base: Path) -> Iterator[Daemon]:
    directory = str(base / "manifests")
    kept = KeptManifests(Config(runtime_directory=str(base)))
    with closing(ManifestList(directory, ManifestWatch(directory, lambda: None), 20.0, kept=kept)) as listed:
        files: Any = listed
        daemon = Daemon(machine, base / "state", files)
        daemon.start()
        yield daemon


@contextmanager
def calls() -> Iterator[list[int]]:
    made: list[int] = []

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_PROGRAM):
            made.append(1)

    sys.setprofile(count)
    try:
        yield made
    finally:
        sys.setprofile(None)


COUNTERS: tuple[Callable[[], Iterator[Row]], ...] = (syncs, launcher, launcher_start, isolation, restart)
