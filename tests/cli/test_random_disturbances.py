"""Runs with one disturbance of random size amid a random background: which one is named first, by the kernel's counters of a run."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from nodeagent.core.certificate.disturbances import THRESHOLDS
from nodeagent.views.certificate.run_report import OtherTasks
from tests.support.run_tree import MIB, RunTree

_RUNS = 10
_CLEAN_RUNS = 100
_BACKGROUND = 0.5
"""Largest part of its threshold that the background has of each kind. The precision of short runs is the other part."""


class RandomRun:
    """One run of a job with whole CPUs. Each method adds one disturbance, of a share, rate or number of times."""

    def __init__(self, root: Path, random: Random, number: int) -> None:
        """Let a run begin.

        Args:
            root: directory of the kernel's files.
            random: source of the run's length and load.
            number: number of the run. Each of four runs in a row has another kind of kernel and user.
        """
        self.tree = RunTree(root)
        self.random = random
        self.excludes_interruptions = number % 4 >= 2
        """Whether the kernel leaves the time of interrupts and of the hypervisor out of a cgroup's CPU time."""
        self.counts_tasks = number % 2 == 0
        """Whether the kernel counts each task, as it does for root."""
        self.seconds = random.choice((0.3, 1.0, 3.0, 20.0)) * random.uniform(0.8, 1.2)
        self.busy = random.uniform(0.3, 1.0)
        self.tasks: list[dict[str, Any]] = []

    def put_task(self, per_mille: float) -> None:
        """Let another task run for a share of the time, or of the CPU time if tasks aren't counted, once the job leaves it a CPU."""
        seconds = (1 if self.counts_tasks else 2) * self.seconds * per_mille / 1000
        self.tree.used -= min(self.tree.used, seconds)
        if self.counts_tasks:
            self.tasks.append({"name": "stress", "movable": True, "microseconds": round(seconds * 1e6)})

    def use_sibling(self, per_mille: float) -> None:
        self.tree.ran[6] += self.seconds * per_mille / 1000

    def be_remote(self, per_mille: float) -> None:
        whole = self.random.randint(200, 2000) * MIB
        remote = round(whole * per_mille / 1000)
        self.tree.memory = (whole - remote, remote)

    def throttle(self, per_mille: float) -> None:
        self.tree.throttled += self.seconds * per_mille / 1000

    def overheat(self, times: float) -> None:
        """Let heat slow the CPUs, which often lowers their frequency and its limit."""
        if times >= 1:
            self.tree.hot += round(times)
            self.slow_down(self.random.uniform(0, 600))
            self.lower_limit(self.random.choice((0, self.random.uniform(0, 600))))

    def steal(self, per_mille: float) -> None:
        seconds = self.seconds * per_mille / 1000
        self.tree.steal += seconds
        self._interrupt_tasks(seconds)

    def interrupt(self, per_second: float) -> None:
        """Let a device interrupt one CPU, for some microseconds each time."""
        self.tree.irqs[3] += round(per_second * self.seconds)
        seconds = per_second * self.seconds * self.random.uniform(1e-6, 9e-6) / 2
        self.tree.interrupted += seconds
        self._interrupt_tasks(seconds)

    def slow_down(self, per_mille: float) -> None:
        """Lower the frequency. Only that of busy CPUs is measured, and not in the shortest runs."""
        self.tree.khz = round(self.tree.khz * (1 - per_mille / 1000))

    def lower_limit(self, per_mille: float) -> None:
        """Lower the frequency's limit, and the frequency with it."""
        self.tree.limit_khz = round(self.tree.limit_khz * (1 - per_mille / 1000))
        self.tree.khz = min(self.tree.khz, self.tree.limit_khz)

    def stall(self, per_mille: float) -> None:
        self.tree.stalled += self.seconds * per_mille / 1000

    def report(self, sizes: dict[str, float]) -> dict[str, Any]:
        """Return the report of the run with these sizes of disturbances."""

        def change() -> None:
            self.tree.run(self.seconds / 2, busy=self.busy)
            for name, size in sizes.items():
                KINDS[name][0](self, size)
            self.tree.others = OtherTasks(
                self.tasks or None, is_complete=self.counts_tasks, counted_us=round(self.seconds * 1e6)
            )

        return self.tree.report(lambda: self.tree.run(self.seconds / 2, busy=self.busy), change)

    def _interrupt_tasks(self, seconds: float) -> None:
        """Take time from the tasks on each CPU, as far as the kernel counts it as taken from them."""
        self.tree.ran.update({cpu: max(self.tree.ran[cpu], seconds) for cpu in (2, 3)})
        if self.excludes_interruptions:
            self.tree.used -= min(self.tree.used, 2 * seconds)


KINDS: dict[str, tuple[Callable[[RandomRun, float], None], float, float]] = {
    "other-tasks": (RandomRun.put_task, 40, 300),
    "sibling": (RandomRun.use_sibling, 80, 1000),
    "remote-memory": (RandomRun.be_remote, 100, 900),
    "throttling": (RandomRun.throttle, 10, 500),
    "thermal-throttling": (RandomRun.overheat, 1, 50),
    "steal": (RandomRun.steal, 80, 300),
    "interrupts": (RandomRun.interrupt, 300, 30_000),
    "frequency": (RandomRun.slow_down, 150, 700),
    "frequency-limit": (RandomRun.lower_limit, 20, 700),
    "memory-pressure": (RandomRun.stall, 20, 500),
}
"""How each kind is brought about, and its smallest and largest size, in the unit of its threshold."""


def draw_background(random: Random, but: str = "") -> dict[str, float]:
    """Draw a size below its threshold for each kind but one."""
    return {name: random.uniform(0, _BACKGROUND) * one.most for name, one in THRESHOLDS.items() if name != but}


def test_a_disturbance_is_named_first(tmp_path: Path) -> None:
    for kind, (_, least, most) in KINDS.items():
        for number in range(_RUNS):
            run = RandomRun(tmp_path / f"{kind}-{number}", Random(f"{kind} {number}"), number)
            if kind == "frequency":
                run.seconds, run.busy = max(run.seconds, 1.0), 1.0
            sizes = draw_background(run.random, kind) | {kind: least * (most / least) ** run.random.random()}
            found = run.report(sizes)
            assert found["verdict"] == "disturbed", (kind, number, sizes)
            assert found["disturbances"][0]["name"] == kind, (number, run.seconds, sizes, found["disturbances"])


def test_a_background_below_the_thresholds_is_clean(tmp_path: Path) -> None:
    for number in range(_CLEAN_RUNS):
        run = RandomRun(tmp_path / str(number), Random(number), number)
        sizes = draw_background(run.random)
        found = run.report(sizes)
        assert found["verdict"] == "clean", (number, run.seconds, sizes, found["disturbances"])


def test_every_kind_has_a_disturbance() -> None:
    assert list(KINDS) == list(THRESHOLDS)
