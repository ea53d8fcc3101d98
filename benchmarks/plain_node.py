"""A node on plain files: the agent's whole turn, with real state files, a real manifest directory, and directories in the place of cgroups.

A plain file takes what is written to it. This kernel adds what a real one does by itself: the files of a new cgroup, and effective values.
`agent_ms` leaves the processor time of that out.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from nodeagent.core.cgroups.write_order import Change, EnableControllers, MakeCgroup, RemoveCgroup, SetAttribute
from nodeagent.core.model.cgroup import Attribute
from nodeagent.core.model.cgroup_layout import PAYLOAD
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.cgroups.cgroupfs.readings import SUBTREE_CONTROL
from nodeagent.edge.cgroups.cgroupfs.tree import CgroupTree
from nodeagent.edge.cgroups.cgroupfs.watch import CgroupWatch
from nodeagent.edge.files.manifest_watch import ManifestWatch
from nodeagent.edge.processes.launcher import Changes
from nodeagent.formats.kernel.cgroup_values import EFFECTIVE_CPUS, EFFECTIVE_MEMS
from nodeagent.formats.wire.launcher_protocol import Exited, Returned, Running, RunStatus, StartRequest
from tests.support.daemon_model import Daemon
from tests.support.node_model import Machine
from tests.support.world import Node

_CONTROLLERS = "cpuset cpu io memory pids\n"
_FILES = {
    "cgroup.subtree_control": "",
    "cgroup.events": "populated 0\nfrozen 0\n",
    "cgroup.procs": "",
    "memory.events": "oom_kill 0\noom_group_kill 0\n",
    "cpuset.cpus": "\n",
    "cpuset.cpus.exclusive": "\n",
    "cpuset.cpus.partition": "member\n",
    "cpuset.mems": "\n",
    "cpu.max": "max 100000\n",
    "cpu.weight": "100\n",
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "pids.max": "max\n",
    "memory.oom.group": "0\n",
    "cgroup.freeze": "0\n",
}


_spent = [0.0]
"""Seconds."""


@contextmanager
def spending() -> Iterator[None]:
    """Count the processor time of what isn't the agent's."""
    began = time.process_time()
    yield
    _spent[0] += time.process_time() - began


def agent_ms() -> float:
    """Return the processor time of this process without that of this kernel, in ms."""
    return (time.process_time() - _spent[0]) * 1000


def measure(run: Callable[[], object]) -> float:
    """Return the processor time of the agent's part of a run, in ms."""
    began_ms = agent_ms()
    run()
    return agent_ms() - began_ms


class PlainTree(CgroupTree):
    """Directories as cgroups. Each change is made by the real tree, after or before what the kernel would add."""

    def __init__(self, root: Path, cpus: str, mems: str, wake: Callable[[], None]) -> None:
        self.events = CgroupWatch(str(root), wake)
        super().__init__(str(root), watch=self.events)
        self._granted = {EFFECTIVE_CPUS: cpus, EFFECTIVE_MEMS: mems}
        if not root.exists():
            self.make("")

    def make(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)
        for name, text in _FILES.items():
            if not name.startswith("cpuset"):
                (self.root / path / name).write_text(text)
        self.give_controllers(
            self.root / path, (self.root / path / ".." / SUBTREE_CONTROL).read_text() if path else _CONTROLLERS
        )

    def give_controllers(self, directory: Path, controllers: str) -> None:
        (directory / "cgroup.controllers").write_text(controllers)
        if "cpuset" not in controllers:
            return
        for name, text in _FILES.items():
            if name.startswith("cpuset"):
                (directory / name).write_text(text)
        for name, text in self._granted.items():
            above = directory.parent / name
            (directory / name).write_text(above.read_text() if directory != self.root else f"{text}\n")

    def apply(self, change: Change) -> None:
        with spending():
            is_done = self._act_as_kernel(change)
        if not is_done:
            super().apply(change)

    def _act_as_kernel(self, change: Change) -> bool:
        """Do the kernel's part of a change, and return whether that is all of it."""
        match change:
            case MakeCgroup(path, has_payload):
                self.make(path)
                if has_payload:
                    self.make(f"{path}/{PAYLOAD}")
            case RemoveCgroup(path):
                shutil.rmtree(self.root / path)
            case EnableControllers(path, controllers):
                (self.root / path / SUBTREE_CONTROL).write_text(" ".join(controllers))
                for child in filter(Path.is_dir, (self.root / path).iterdir()):
                    self.give_controllers(child, " ".join(controllers))
            case SetAttribute(path, attribute, value):
                if attribute is Attribute.CPUSET_CPUS:
                    (self.root / path / EFFECTIVE_CPUS).write_text(f"{value}\n")
                if attribute is Attribute.CPUSET_MEMS:
                    (self.root / path / EFFECTIVE_MEMS).write_text(f"{value}\n")
                os.truncate(self.root / path / attribute.value, 0)
                return False
        return True


@dataclass
class PlainLauncher:
    """A launcher whose processes are what `cgroup.events` says of them. It outlives the agent."""

    root: Path
    runs: dict[str, RunStatus] = field(default_factory=dict)
    requests: dict[str, StartRequest] = field(default_factory=dict)
    """Requests of the runs."""

    changed: list[str] = field(default_factory=list)
    """IDs of the runs that have changed, in order. A token counts how many of them the agent knows."""
    _pids: Iterator[int] = field(default_factory=lambda: count(4_000_000))
    _processes: Counter[Path] = field(default_factory=Counter)
    """Number of processes at and below each cgroup."""

    def list_changes(self, since: str) -> Changes:
        if not since:
            self.changed.clear()
            return Changes(tuple(self.runs.values()), (), "0", is_whole=True)
        changed = dict.fromkeys(self.changed[int(since) :])
        statuses = tuple(self.runs[run_id] for run_id in changed if run_id in self.runs)
        gone = tuple(run_id for run_id in changed if run_id not in self.runs)
        return Changes(statuses, gone, str(len(self.changed)), is_whole=False)

    def start(self, request: StartRequest) -> RunStatus:
        run = self.runs[request.id] = Running(request.id, next(self._pids), 1, "boot", None, 1)
        self.requests[request.id] = request
        self.changed.append(request.id)
        self._count(request, 1)
        return run

    def signal(self, run_id: str, _number: int) -> bool:
        if isinstance(self.runs[run_id], Running):
            self.runs[run_id] = Exited(run_id, 1, None, 1, 2, Returned(0))
            self.changed.append(run_id)
            self._count(self.requests[run_id], -1)
        return True

    def ack(self, ids: tuple[str, ...]) -> tuple[str, ...]:
        for run_id in ids:
            del self.runs[run_id], self.requests[run_id]
            self.changed.append(run_id)
        return ids

    def _count(self, request: StartRequest, processes: int) -> None:
        with spending():
            directory = Path(str(request.cgroup))
            while directory != self.root:
                before = bool(self._processes[directory])
                self._processes[directory] += processes
                if bool(self._processes[directory]) != before:
                    (directory / "cgroup.events").write_text(f"populated {int(not before)}\nfrozen 0\n")
                if not self._processes[directory]:
                    del self._processes[directory]
                directory = directory.parent


@dataclass
class PlainDaemon(Daemon):
    """The agent's process over plain files."""

    launcher: PlainLauncher = field(init=False)

    def make_tree(self) -> Any:
        topology = self.machine.node.managers.topology
        mems = str(topology.memory_nodes)
        self.tree = PlainTree(self.launcher.root, str(topology.online), mems, lambda: None)
        return self.tree

    def make_client(self) -> Any:
        return self.launcher


def manifest(number: int, resources: str) -> str:
    """Return the manifest of a pod with one container."""
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number:04}}}\nspec:\n  containers:\n"
        f"  - {{name: main, command: [run], resources: {{{resources}}}}}\n"
    )


@contextmanager
def plain_agent(of: Node, directory: Path, launcher: PlainLauncher | None = None) -> Iterator[PlainDaemon]:
    """Run an agent on plain files below a directory. With the launcher of an earlier agent there, this is a restart."""
    made: list[PlainDaemon] = []
    manifests = directory / "manifests"
    manifests.mkdir(exist_ok=True)
    state = directory / "state"
    state.mkdir(exist_ok=True)

    def wake() -> None:
        made[0].agent.wakeups.wake(WakeUpReason.MANIFESTS)

    with closing(ManifestList(str(manifests), ManifestWatch(str(manifests), wake), 20.0)) as files:
        listed: Any = files
        daemon = PlainDaemon(Machine(of), state, listed)
        daemon.launcher = launcher or PlainLauncher(state / "cgroup")
        made.append(daemon)
        daemon.start()
        daemon.tree.events.renew()
        yield daemon
        daemon.tree.events.stop()


def settle(daemon: PlainDaemon, reason: WakeUpReason) -> int:
    """Do turns until no further one is due before the timer. Return their number."""
    turns, reasons = 1, frozenset({reason})
    while daemon.agent.turn(reasons) < 1:
        turns, reasons = turns + 1, frozenset({WakeUpReason.CGROUPS})
    return turns
