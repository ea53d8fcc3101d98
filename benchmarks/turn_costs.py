"""Costs of a turn beside many pods: at rest, and for one pod more, by the agent's whole turn on plain files (plain_node.py)."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.agent_costs import calls
from benchmarks.goals import Row, timed
from benchmarks.plain_node import PlainDaemon, PlainLauncher, manifest, measure, plain_agent, settle, spending
from benchmarks.timing import Clock
from nodeagent.core.model.topology import Cpu, NumaNode, Topology
from nodeagent.daemon.turn.wakeups import WakeUpReason
from tests.support.builders import GIB
from tests.support.daemon_model import RUNTIME
from tests.support.world import node

MACHINE = Topology.of(
    [Cpu(id=core + 32 * t, core=core, socket=core // 16, numa=core // 16) for t in range(2) for core in range(32)],
    [NumaNode(n, 128 * GIB, (), tuple(10 if a == n else 21 for a in range(2))) for n in range(2)],
)
"""2 sockets of 16 cores of 2 threads."""
SHARED, EXCLUSIVE = "requests: {cpu: 10m, memory: 1Mi}", "limits: {cpu: 2, memory: 1Mi}"
_TIMER = frozenset({WakeUpReason.TIMER})
_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A directory in memory. None means that there is none, and all files are on the disk."""


@contextmanager
def beside(pods: int) -> Iterator[tuple[PlainDaemon, Path]]:
    """Run an agent that has so many shared pods and rests, and yield it with its manifest directory.

    As on a node, the state and the manifests are on the disk, and cgroups and the runtime directory in memory.
    """
    with ExitStack() as stack:
        on_disk = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        in_memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=_MEMORY)))
        (in_memory / RUNTIME).mkdir()
        (on_disk / "state").mkdir()
        (on_disk / "state" / RUNTIME).symlink_to(in_memory / RUNTIME)
        daemon = stack.enter_context(plain_agent(node(MACHINE), on_disk, PlainLauncher(in_memory / "cgroup")))
        manifests = on_disk / "manifests"
        settle(daemon, WakeUpReason.START)
        for number in range(pods):
            (manifests / f"{number:04}.yaml").write_text(manifest(number, SHARED))
        settle(daemon, WakeUpReason.MANIFESTS)
        assert len(daemon.launcher.runs) == pods, daemon.agent.view.problems[:3]
        add_pod(daemon, manifests, 8000)  # whatever is done for the first time is done now
        while daemon.agent.memory.settled is None:
            settle(daemon, WakeUpReason.TIMER)
        yield daemon, manifests


def add_pod(daemon: PlainDaemon, manifests: Path, number: int) -> None:
    with spending():
        (manifests / f"{number}.yaml").write_text(manifest(number, EXCLUSIVE))
    settle(daemon, WakeUpReason.MANIFESTS)


def turn_calls() -> Iterator[Row]:
    """Count calls of the program's functions in a turn of the timer at rest, and in the turns of one exclusive pod more."""
    for pods, compared in ((10, ("", "")), (100, ("", ""))):
        with beside(pods) as (daemon, manifests):
            for _ in range(70):  # until each cgroup has been read in rotation
                daemon.agent.turn(_TIMER)
            with calls() as made:
                daemon.agent.turn(_TIMER)
            yield counted(f"calls of functions in a turn of the timer beside {pods} pods", sum(made), compared[0])
            with calls() as made:
                add_pod(daemon, manifests, 9000)
            yield counted(f"calls of functions for one exclusive pod more beside {pods} pods", sum(made), compared[1])


def turns(clock: Clock) -> Iterator[Row]:
    """Processor time of the whole turn, the best of some: what else runs takes the caches away, and only adds to it."""
    former = ((0, "0.9 ms", 8, "8 ms"), (100, "48.7 ms", 10, "123 ms"), (400, "190 ms", 12, "455 ms"))
    for pods, timer, goal, one_more in former:
        with beside(pods) as (daemon, manifests):

            def rest(daemon: PlainDaemon = daemon) -> list[float]:
                return [min(measure(lambda: daemon.agent.turn(_TIMER)) for _ in range(9))]

            yield timed("turns", f"turn of the timer beside {pods} pods", clock.time_runs(rest), 1.5, timer)
            numbers = iter(range(9000, 9100))

            def add(
                daemon: PlainDaemon = daemon, manifests: Path = manifests, numbers: Iterator[int] = numbers
            ) -> list[float]:
                return [min(measure(lambda: add_pod(daemon, manifests, next(numbers))) for _ in range(5))]

            name = f"one exclusive pod more beside {pods} pods, all its turns"
            yield timed("turns", name, clock.time_runs(add), goal, one_more)


def counted(name: str, count: int, compared: str) -> Row:
    return Row("counts", name, count, count, None, compared, unit="")
