"""Counts of the agent's process: syncs of a pod, a look at the launcher's runs, and the work of a restart beside its turns."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
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
from nodeagent.launcher.records import ProcessRecord, Runs
from tests.support.daemon_model import Daemon
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, node

_PROGRAM = str(ROOT / "nodeagent")
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


COUNTERS: tuple[Callable[[], Iterator[Row]], ...] = (syncs, launcher, restart)
