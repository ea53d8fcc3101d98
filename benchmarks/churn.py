"""`python -m benchmarks --churn MINUTES`: 1,000 pods come and go at random beside an agent that is restarted, on a machine of 512 CPUs.

The agent's whole turn runs on plain files (plain_node.py). After each turn, the CPUs of all running containers are counted from those files
and the names of the pods alone: no CPU that is exclusive may be another's. Each turn of the timer also makes anew what the agent keeps from
turn to turn, and compares.
"""

import gc
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.goals import Row, timed
from benchmarks.plain_node import PlainDaemon, PlainLauncher, agent_ms, measure, plain_agent
from benchmarks.timing import REFERENCE_LOOP_MS, Clock, Timing
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.kernel.sysfs import read_machine
from nodeagent.formats.kernel.sysfs import topology_of
from nodeagent.formats.wire.launcher_protocol import Running
from tests.support.machine_tree import Cache, Machine
from tests.support.world import Node, node

PODS = 1000
PAUSE_SECONDS = 0.25
"""Between two changes, so that the run leaves the machine to others."""
CHANGES_BETWEEN_TIMERS, CHANGES_OF_LIFE = 20, 100
"""Number of changes until the next turn of the timer, and until the next restart of the agent."""
TURNS_UNTIL_REST = 100
"""Number of turns of the timer in which each cgroup is read again, and what has waited is done."""
_TIMER = frozenset({WakeUpReason.TIMER})
_CPUS, _NODES = 512, 8
_RESOURCES = {
    "sharing": ("", "requests: {cpu: 10m, memory: 1Mi}"),
    "exclusive": ("", "limits: {cpu: COUNT, memory: 1Mi}"),
    "mixed": (', annotations: {exclusive-cpus.nodeagent.io/main: "COUNT"}', "requests: {cpu: COUNT.1, memory: 1Mi}"),
}
"""Annotation and resources of a pod of each kind."""


def large_node() -> Node:
    """Return a node of 512 CPUs, 2 sockets and 8 NUMA nodes, as it is discovered in /sys and /proc."""
    half = _CPUS // 2
    size = half // _NODES

    def both_threads(first: int, last: int) -> str:
        return f"{first}-{last},{first + half}-{last + half}"

    nodes = tuple((n, both_threads(n * size, n * size + size - 1)) for n in range(_NODES))
    packages = (both_threads(0, half // 2 - 1), both_threads(half // 2, half - 1))
    cores = tuple(f"{core},{core + half}" for core in range(half))
    tree = Machine(cores, packages, nodes, tuple(Cache(3, 3, cpus, number) for number, cpus in nodes))
    with tempfile.TemporaryDirectory() as directory:
        return node(topology_of(read_machine(str(tree.grow(Path(directory))))), max_pods=2 * PODS)


def effective_cpus(root: Path, cgroup: Path, known: dict[Path, frozenset[int]]) -> frozenset[int]:
    """Return the CPUs that the kernel grants a cgroup: its own list within the parent's CPUs, or all of those."""
    if cgroup not in known:
        file = cgroup / "cpuset.cpus"
        own = file.read_text().strip() if file.exists() else ""
        listed = frozenset(
            cpu
            for part in own.split(",")
            if part
            for cpu in range(int(part.partition("-")[0]), int(part.rpartition("-")[2]) + 1)
        )
        above = frozenset(range(_CPUS)) if cgroup == root else effective_cpus(root, cgroup.parent, known)
        known[cgroup] = listed & above or above
    return known[cgroup]


def list_overlaps(launcher: PlainLauncher) -> Iterator[str]:
    """Count the CPUs of all running containers. The kind and number of a pod's exclusive CPUs are in its name."""
    known: dict[Path, frozenset[int]] = {}
    cpus = {
        request.identifier.partition("/")[0]: effective_cpus(launcher.root, Path(str(request.cgroup)), known)
        for run_id, request in launcher.requests.items()
        if isinstance(launcher.runs[run_id], Running)
    }
    shared = frozenset[int]().union(*(found for name, found in cpus.items() if name.startswith("sharing")))
    users: Counter[int] = Counter()
    for name, found in cpus.items():
        kind, wanted, _ = name.split("-")
        own = found - shared if kind == "mixed" else found if kind == "exclusive" else frozenset()
        users.update(own)
        if len(own) != int(wanted):
            yield f"{name} has {len(own)} CPUs of its own"
        if kind == "exclusive" and own & shared:
            yield f"{name} has CPUs of the shared pool: {sorted(own & shared)}"
    yield from (f"CPU {cpu} is exclusive to {count} pods" for cpu, count in users.items() if count > 1)


@dataclass
class Churn:
    """Random changes, and what has come of them."""

    directory: Path
    pods: int
    dice: random.Random = field(default_factory=lambda: random.Random(PODS))
    done: Counter[str] = field(default_factory=Counter)
    overlaps: list[str] = field(default_factory=list)
    changes_ms: list[float] = field(default_factory=list)
    """Processor time of the agent for each change."""
    starts_ms: list[float] = field(default_factory=list)
    """Processor time of the first turn after each restart."""
    memory_mib: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.node = large_node()
        self.launcher = PlainLauncher(self.directory / "state" / "cgroup")
        self.manifests = self.directory / "manifests"
        self.manifests.mkdir()
        for slot in range(self.pods):
            self.write(slot)

    def write(self, slot: int) -> None:
        """Write a manifest. Of ten pods, one is exclusive and one is mixed."""
        kind = {0: "exclusive", 5: "mixed"}.get(slot % 10, "sharing")
        count = 0 if kind == "sharing" else self.dice.choice((1, 1, 2, 4))
        annotation, resources = (text.replace("COUNT", str(count)) for text in _RESOURCES[kind])
        (self.manifests / f"{slot:04}.yaml").write_text(
            f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {kind}-{count}-{slot:04}{annotation}}}\n"
            f"spec: {{containers: [{{name: main, command: [run], resources: {{{resources}}}}}]}}\n"
        )

    def change(self) -> WakeUpReason:
        """Let a pod come, change or go, or a process end."""
        slot = self.dice.randrange(self.pods)
        file = self.manifests / f"{slot:04}.yaml"
        if self.dice.random() < 0.2:
            running = sorted(run_id for run_id, run in self.launcher.runs.items() if isinstance(run, Running))
            self.launcher.signal(self.dice.choice(running), 9)
            self.done["processes that ended by themselves"] += 1
            return WakeUpReason.RUNS
        if not file.exists() or self.dice.random() < 0.2:
            self.done["pods that changed" if file.exists() else "pods that came"] += 1
            self.write(slot)
        else:
            file.unlink()
            self.done["pods that went"] += 1
            self.come_back()
        return WakeUpReason.MANIFESTS

    def come_back(self) -> None:
        """Let one of the missing pods come if many are missing."""
        missing = [slot for slot in range(self.pods) if not (self.manifests / f"{slot:04}.yaml").exists()]
        if len(missing) > self.pods // 20:
            self.write(self.dice.choice(missing))
            self.done["pods that came"] += 1

    def settle(self, daemon: PlainDaemon, reason: WakeUpReason) -> float:
        """Do turns until no further one is due, and count after each. Return the agent's processor time, in ms."""
        taken_ms, pause = 0.0, 0.0
        while pause < 1:
            began_ms = agent_ms()
            pause = daemon.agent.turn(frozenset({reason}))
            taken_ms += agent_ms() - began_ms
            self.overlaps += list_overlaps(self.launcher)
            self.done["turns"] += 1
            reason = WakeUpReason.CGROUPS
        return taken_ms

    def live(self, changes: int, pause_seconds: float = 0.0) -> None:
        """Run an agent for a number of changes."""
        with plain_agent(self.node, self.directory, self.launcher) as daemon:
            self.starts_ms.append(self.settle(daemon, WakeUpReason.START))
            for number in range(changes):
                self.changes_ms.append(self.settle(daemon, self.change()))
                if number % CHANGES_BETWEEN_TIMERS == 0:
                    self.settle(daemon, WakeUpReason.TIMER)
                    daemon.check_derived()
                    daemon.log.truncate(0)
                time.sleep(pause_seconds)
            running = sum(isinstance(run, Running) for run in self.launcher.runs.values())
            assert running > 0.8 * self.pods, daemon.agent.view.problems[:5]
        self.done["lives of the agent"] += 1
        gc.collect()
        self.memory_mib.append(psutil.Process().memory_info().rss / 2**20)


def churn(clock: Clock, minutes: float, pods: int = PODS, pause_seconds: float = PAUSE_SECONDS) -> Iterator[Row]:
    """Let pods come and go for some minutes, and then measure the agent at rest."""
    with tempfile.TemporaryDirectory() as directory:
        churned = Churn(Path(directory), pods)
        began, passed = time.monotonic(), 0.0
        while passed < minutes:
            churned.live(CHANGES_OF_LIFE, pause_seconds)
            passed = (time.monotonic() - began) / 60
            clock.calibrate()
            print(f"{passed:.0f} min: {dict(churned.done)}, {churned.memory_mib[-1]:.1f} MiB", file=sys.stderr)
        for overlap in churned.overlaps[:10]:
            print(overlap, file=sys.stderr)
        yield counted("minutes of churn", round(passed))
        yield from (counted(what, count) for what, count in sorted(churned.done.items()))
        name = "CPUs of a pod that another could use, and pods without all of theirs, counted after each turn"
        yield counted(name, len(churned.overlaps), goal=0)
        yield timed("churn", "one change, all its turns, the median", on_reference(clock, churned.changes_ms))
        memory, quarter = churned.memory_mib, len(churned.memory_mib) // 4
        more = max(memory[-quarter:]) - max(memory[quarter : 2 * quarter or 1])
        yield Row("churn", "more memory in the last quarter than in the second", more, more, unit="MiB")
        with plain_agent(churned.node, churned.directory, churned.launcher) as daemon:
            churned.starts_ms.append(churned.settle(daemon, WakeUpReason.START))
            name = f"restart under {pods:,} pods, the first turns"
            yield timed("churn", name, on_reference(clock, churned.starts_ms[1:]))
            for _ in range(TURNS_UNTIL_REST):
                daemon.agent.turn(_TIMER)
            assert daemon.agent.memory.settled is not None, daemon.agent.view.problems[:3]
            taken = clock.time_runs(lambda: [measure(lambda: daemon.agent.turn(_TIMER)) for _ in range(9)])
            yield timed("churn", f"turn of the timer beside {pods:,} pods, afterwards", taken, 1.5)


def on_reference(clock: Clock, measured_ms: list[float]) -> Timing:
    """Return the median, calibrated by all loops that ran meanwhile."""
    median_ms = statistics.median(measured_ms)
    return Timing(median_ms, median_ms * REFERENCE_LOOP_MS / statistics.median(clock.loops_ms))


def counted(name: str, count: int, goal: int | None = None) -> Row:
    return Row("churn", name, count, count, goal, unit="")
