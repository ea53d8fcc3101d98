"""A thousand pods at once and a flood of file events, by the real agent: real manifests, a real watch, real state files, recorded cgroups.

The ordinary run has a tenth of it; `make soak` all.
"""

import gc
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.write_order import Change, MakeCgroup, RemoveCgroup
from nodeagent.core.model.state import Exit
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import CpuHoldings, default_set
from nodeagent.core.turn.actions import Action, Launch, Terminate
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.files.manifest_watch import ManifestWatch
from tests.support.builders import GIB
from tests.support.daemon_model import Daemon, Steps
from tests.support.figures import Recorder, keep, report
from tests.support.node_model import Machine, Process
from tests.support.world import Node, node

pytestmark = pytest.mark.whole

MACHINE_64 = Topology.of(
    [Cpu(id=core + 32 * t, core=core, socket=core // 16, numa=core // 16) for t in range(2) for core in range(32)],
    [NumaNode(n, 128 * GIB, (), tuple(10 if a == n else 21 for a in range(2))) for n in range(2)],
)
"""2 sockets of 16 cores of 2 threads; c and c + 32 are siblings."""
DEADLINE_SECONDS = 600.0
EXCLUSIVE = 20
"""Of the pods, each with two CPUs of its own."""

GUARANTEED = "resources: {limits: {cpu: 2, memory: 64Mi}}"
BURSTABLE = "resources: {requests: {cpu: 5m, memory: 1Mi}}"


class Quick(Machine):
    """The model, for thousands of cgroups: it knows where a run is and what lies below a cgroup, instead of looking everywhere."""

    def __init__(self, of: Node) -> None:
        super().__init__(of)
        self._place: dict[str, str] = {}
        self._below: dict[str, set[str]] = {}

    def forget(self) -> None:
        """Drop what is kept of the past."""
        for kept in (self.writes, self.starts, self.signals):
            kept.clear()
        self._place = {run_id: path for run_id, path in self._place.items() if run_id in self.runs}
        self._below = {path: below for path, below in self._below.items() if below}

    def is_populated(self, path: str) -> bool:
        return bool(self.groups[path].processes) or any(map(self.is_populated, self._below.get(path, ())))

    def apply(self, change: Change) -> None:
        super().apply(change)
        above = self._below.setdefault(change.path.rpartition("/")[0], set())
        if isinstance(change, MakeCgroup):
            above.add(change.path)
        elif isinstance(change, RemoveCgroup):
            above.discard(change.path)

    def act(self, action: Action) -> None:
        if isinstance(action, Terminate):  # nothing is frozen here
            self._terminate(self._of_run(action.run_id))
        else:
            super().act(action)

    def _launch(self, action: Launch) -> None:
        super()._launch(action)
        self._place[action.run_id] = action.path

    def _of_run(self, run_id: str) -> list[Process]:
        return [process for process in self.groups[self._place[run_id]].processes if process.run_id == run_id]

    def _end(self, process: Process, how: Exit) -> None:
        assert process.run_id is not None
        group = self.groups[self._place[process.run_id]]
        group.processes = [p for p in group.processes if p is not process]
        self.runs[process.run_id] = replace(self.runs[process.run_id], pid=None, exit=how)


@contextmanager
def agent_of(
    of: Node, machine: Machine, manifests: Path, state: Path, woken: Callable[[], object] = lambda: None
) -> Iterator[Daemon]:
    """The agent as its process composes it; everything of the directories is real."""
    made: list[Daemon] = []

    def wake() -> None:
        woken()
        made[0].agent.wakeups.wake(WakeUpReason.MANIFESTS)

    with closing(ManifestList(str(manifests), ManifestWatch(str(manifests), wake), 20.0)) as files:
        listed: Any = files
        daemon = Daemon(machine, state, listed, Steps())
        made.append(daemon)
        daemon.start()
        yield daemon


def live(daemon: Daemon, until: Callable[[], bool], first: WakeUpReason = WakeUpReason.MANIFESTS) -> tuple[int, float]:
    """Turn as the process does. Gives the number of turns and the longest one's seconds."""
    agent, reasons, turns, longest = daemon.agent, frozenset({first}), 0, 0.0
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        began = time.monotonic()
        pause = agent.turn(reasons)
        turns, longest = turns + 1, max(longest, time.monotonic() - began)
        if until():
            return turns, longest
        assert time.monotonic() < deadline, agent.view.problems[:5]
        reasons = agent.wakeups.wait(pause)


def manifest(number: int, version: int = 0) -> str:
    """A pod of three containers; every so many-th has CPUs of its own."""
    resources = GUARANTEED if number < EXCLUSIVE else BURSTABLE
    containers = "".join(
        f"  - {{name: c{c}, command: [run, v{version}], {resources if c == 0 or number >= EXCLUSIVE else SMALL}}}\n"
        for c in range(3)
    )
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p{number:04}}}\nspec:\n  containers:\n{containers}"


SMALL = "resources: {limits: {cpu: 10m, memory: 1Mi}}"


def rss_mib() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


def running(daemon: Daemon) -> int:
    return sum(run.exit is None for run in daemon.machine.runs.values())


def refused(daemon: Daemon) -> list[Waiting]:
    return [entry.refusal for entry in daemon.agent.state.entries if entry.refusal is not None]


def directories(base: Path) -> tuple[Path, Path]:
    manifests, state = base / "manifests", base / "state"
    manifests.mkdir()
    state.mkdir()
    return manifests, state


def test_pods_that_arrive_at_once_are_all_decided_restored_and_removed(
    tmp_path: Path, record_property: Recorder, *, host_soak: bool
) -> None:
    pods = 1000 if host_soak else 100
    manifests, state = directories(tmp_path)
    of = node(MACHINE_64)
    machine, before = Quick(of), rss_mib()
    took: dict[str, float] = {}
    with agent_of(of, machine, manifests, state) as daemon:
        live(daemon, lambda: True, WakeUpReason.START)
        for number in range(pods):
            (manifests / f"{number:04}.yaml").write_text(manifest(number))
        began = time.monotonic()
        turns, longest = live(daemon, lambda: running(daemon) == 3 * (pods - len(refused(daemon))))
        took["until all ran"], took["longest turn"] = time.monotonic() - began, longest
        assert refused(daemon) == []
        assert len(daemon.agent.state.entries) == pods
        promised = daemon.agent.state.promises
        owned = [
            p.of(CpuHoldings).own_set("c0") for _, p in promised.pods if p.of(CpuHoldings).own_set("c0") is not None
        ]
        assert (
            sum(map(len, filter(None, owned))) == 2 * EXCLUSIVE == len(MACHINE_64.online) - len(default_set(promised))
        )
        size, writes = (state / "nodeagent_state").stat().st_size, len(machine.writes)
        grown = rss_mib() - before

    began, starts = time.monotonic(), len(machine.starts)
    with agent_of(of, machine, manifests, state) as daemon:
        live(daemon, lambda: True, WakeUpReason.START)
        took["restart"] = time.monotonic() - began
        assert (daemon.agent.state.promises, len(machine.starts)) == (promised, starts)
        assert len(machine.writes) == writes, "a restart writes nothing"
        began = time.monotonic()
        for path in manifests.iterdir():
            path.unlink()
        live(daemon, lambda: not daemon.agent.state.entries)
        took["until all were gone"] = time.monotonic() - began
        daemon.rest()
        assert len(default_set(daemon.agent.state.promises)) == len(MACHINE_64.online)
    assert [path for path in machine.groups if "pod" in path] == []
    assert not machine.runs
    seconds = ", ".join(f"{what} {value:.1f} s" for what, value in took.items())
    report(
        record_property,
        f"load: {pods} pods of 3 containers at once: {turns} turns, {seconds}; {writes} cgroup changes, a state of {size // 1024} KiB, "
        f"{grown:.0f} MiB more memory",
    )
    if host_soak:
        keep("load", "pods", pods=pods, containers=3 * pods, cgroup_changes=writes, turns=turns)
    assert turns < pods
    assert grown < 20 + 0.3 * pods


WRITER = """
import os, sys
directory, count, pods = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
texts = sys.stdin.read().split("\\0")
for i in range(count):
    # Every other one in place, as editors do, the rest by renaming, as tools do; the last ones are the last word.
    name = f"{directory}/{i % pods:04}.yaml"
    text = texts[i % pods + (pods if i >= count - pods else 0)]
    if i % 2:
        with open(name, "w") as file:
            file.write(text)
    else:
        with open(f"{directory}/.new", "w") as file:
            file.write(text)
        os.rename(f"{directory}/.new", name)
"""


def test_a_flood_of_file_events_coalesces_and_none_of_the_last_ones_is_lost(
    tmp_path: Path, record_property: Recorder, *, host_soak: bool
) -> None:
    """Writing a file is three events at least (made or renamed, modified, closed): the kernel merges those that nobody has read yet."""
    writes, pods = (80_000, 50) if host_soak else (2_000, 20)
    manifests, state = directories(tmp_path)
    of = node(MACHINE_64)
    machine, woken = Quick(of), itertools.count()
    threads = threading.active_count()
    with agent_of(of, machine, manifests, state, lambda: next(woken)) as daemon:
        live(daemon, lambda: True, WakeUpReason.START)
        before, descriptors = rss_mib(), len(list(Path("/proc/self/fd").iterdir()))
        texts = "\0".join(manifest(n, version) for version in (0, 1) for n in range(pods))
        command = [sys.executable, "-c", WRITER, str(manifests), str(writes), str(pods)]
        began = time.monotonic()
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as writer:
            assert writer.stdin is not None
            writer.stdin.write(texts)
            writer.stdin.close()
            turns, longest = live(daemon, lambda: writer.poll() is not None)
        assert writer.returncode == 0
        more, _ = live(daemon, lambda: ran(daemon) == {f"p{n:04}": "v1" for n in range(pods)})
        seconds, events = time.monotonic() - began, next(woken)
        grown = rss_mib() - before
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert threading.active_count() == threads
    report(
        record_property,
        f"flood: {events} file events of {writes} writes in {seconds:.1f} s: {turns + more} turns, the longest {longest:.2f} s, "
        f"{grown:.0f} MiB more memory",
    )
    if host_soak:
        keep("flood", "writes", file_events=events, turns=turns + more)
        assert events >= 100_000
    assert turns + more < writes / 4
    assert grown < 100


def ran(daemon: Daemon) -> dict[str, str]:
    """What runs, by pod: the version that its process was started with."""
    entries = daemon.agent.state.entries
    active = {e.pod.uid: e.pod for e in entries if e.is_active and e.deleting_since_ms is None}
    started = {run.id.split("/")[0] for run in daemon.machine.runs.values() if run.exit is None}
    return {pod.name: pod.containers[0].command[1] for uid, pod in active.items() if uid in started}


KINDS: dict[str, Callable[[int], str]] = {
    "invalid": lambda _: "kind: Pod\nmetadata: {name: A}\n",
    "of one name": lambda _: manifest(0),
    "more than fit": lambda number: manifest(EXCLUSIVE + number),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_thousands_of_files_gets_one_answer_in_bounded_time(
    tmp_path: Path, record_property: Recorder, kind: str, *, host_soak: bool
) -> None:
    count, most_seconds = (10_000, 60) if host_soak else (2_000, 10)
    manifests, state = directories(tmp_path)
    for number in range(count):
        (manifests / f"{number:05}.yaml").write_text(KINDS[kind](number))
    machine, before, took = Quick(node(MACHINE_64)), rss_mib(), []
    with agent_of(machine.node, machine, manifests, state) as daemon:
        for _ in range(3):
            began = time.process_time()
            daemon.agent.turn(frozenset({WakeUpReason.MANIFESTS}))
            took.append(time.process_time() - began)
        answers = {"invalid": "manifest_refused", "of one name": "manifest_shadowed", "more than fit": "pod_refused"}
        reported = [line["source"] for line in daemon.said() if line["event"] == answers[kind]]
        entries, grown = len(daemon.agent.state.entries), rss_mib() - before
    assert len(reported) == len(set(reported)) == count - {"invalid": 0, "of one name": 1, "more than fit": 1000}[kind]
    assert entries == {"invalid": 0, "of one name": 1, "more than fit": count}[kind]
    if host_soak:
        keep("wrong manifests", kind, files=count, answers=len(reported))
    assert max(took) < most_seconds
    assert grown < 200
    report(
        record_property,
        f"{count} manifests, {kind}: the first turn took {took[0]:.1f} s, each other {took[-1]:.1f} s, {grown:.0f} MiB more memory",
    )
