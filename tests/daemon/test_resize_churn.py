"""A thousand resizes on one node, among pods that come, are refused and go: when all pods have ended, nothing of them is left.

The real turns, state file, placement files and metrics, over the model of kernel and launcher.
"""

import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from nodeagent.core.model.config import ReservedMemory
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import RESIZE_DEFERRED, RESIZE_INFEASIBLE
from nodeagent.core.turn.world import EventKind
from tests.support.builders import machine
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.figures import Recorder, report
from tests.support.node_model import Machine
from tests.support.pods import amounts, app, burstable, mixed, pod
from tests.support.world import node

pytestmark = pytest.mark.whole

RESIZES = 1_000
NAMES = ("one", "two", "pair", "beside", "mixed", "shares", "restarts")
NODE = node(
    machine(nodes=2, cores=3),
    memory_manager_policy="Static",
    reserved_memory=(ReservedMemory(0, amounts(memory="64Mi")),),
    memory_reservation=amounts(memory="64Mi"),
    topology_manager_policy="restricted",
)
"""2 NUMA nodes of 3 cores: 12 CPUs, of which CPU 0 is reserved."""
MOST_CPUS = 4
PASSING = re.compile(r"nodeagent_state_generation|process_.*")
"""Gauges that only ever rise, or are of the test's own process."""


def made(name: str, dice: Random) -> Pod:
    count, memory = dice.randint(1, MOST_CPUS), f"{dice.choice((16, 64, 256, 1024))}Mi"
    match name:
        case "beside":
            return pod(name, app("x", cpu=str(count), memory=memory), app("s", cpu="500m", memory=memory))
        case "mixed":
            return pod(name, mixed(cpu=f"{count}500m", own=1, memory=memory))
        case "shares":
            return pod(name, app(resources=burstable(f"{count}00m", str(count))))
        case "restarts":
            return pod(name, app(cpu=str(count), memory=memory, restarts_for=("cpu",)))
        case "pair":
            other = str(dice.randint(1, MOST_CPUS))
            return pod(name, app("x", cpu=str(count), memory=memory), app("y", cpu=other, memory=memory))
        case _:
            return pod(name, app(cpu=str(count), memory=memory))


class Churn:
    """What happens on the node; each time until nothing changes any more."""

    def __init__(self, daemon: Daemon, dice: Random) -> None:
        self.daemon, self.machine, self.dice = daemon, daemon.machine, dice
        self.pods: dict[str, Pod] = {}
        self.happened = Counter[str]()

    def go_on(self) -> None:
        there = [entry.pod.name for entry in self.daemon.agent.state.entries if entry.is_active]
        name = self.dice.choice(there if there and self.dice.random() < 0.7 else NAMES)
        if name in self.pods and self.dice.random() < 0.1:
            del self.pods[name]
        else:
            self.pods[name] = made(name, self.dice)
        running = self.machine.running()
        if running and self.dice.random() < 0.03:
            self.machine.exit(self.dice.choice(running), 1)
        if self.dice.random() < 0.01:
            self.daemon.start()
        self.rest()

    def rest(self) -> None:
        self.machine.now_ms += 1_000
        self.daemon.files.pods = tuple(self.pods.values())
        self.daemon.rest()
        self._listen()

    def _listen(self) -> None:
        for line in self.daemon.said():
            event = line["event"]
            told = event == EventKind.CHANGE_REFUSED.value
            self.happened[line["reason"] if told else event] += 1
        self.daemon.log.seek(0)
        self.daemon.log.truncate()
        self.daemon.steps.done.clear()

    def let_all_end(self) -> None:
        self.pods.clear()
        for _ in range(3):
            self.rest()
            self.machine.now_ms += 600_000


def gauges(daemon: Daemon) -> dict[str, str]:
    """Every series of a gauge, with its value."""
    lines = daemon.agent.metrics.exposition.text().decode().splitlines()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE ") and line.endswith(" gauge")}
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    shown = {series: value for series, _, value in found if series.partition("{")[0] in names}
    return {series: value for series, value in shown.items() if not PASSING.fullmatch(series)}


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_a_thousand_resizes_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Recorder
) -> None:
    kernel = Machine(NODE)
    daemon = Daemon(kernel, tmp_path, steps=Steps())
    with watched(monkeypatch, kernel, daemon.steps):
        daemon.start()
        churn = Churn(daemon, Random(RESIZES))
        # once with a pod, so that what is there for the first one alone is there
        churn.pods["one"] = pod("one", app(cpu="1"))
        churn.rest()
        churn.let_all_end()
        empty, groups, there, shown = daemon.agent.state.promises, observed(kernel), files(tmp_path), gauges(daemon)
        churn.happened.clear()

        while churn.happened[EventKind.POD_RESIZED.value] < RESIZES:
            churn.go_on()
        churn.let_all_end()

    assert daemon.agent.state.entries == ()
    assert daemon.agent.state.promises == empty
    assert observed(kernel) == groups
    assert files(tmp_path) == there
    assert gauges(daemon) == shown
    assert kernel.runs == {}
    assert daemon.agent.view.problems == ()
    happened = churn.happened
    report(record_property, f"resizes: {happened.total()} events, {dict(happened)}")
    for what in (RESIZE_DEFERRED, RESIZE_INFEASIBLE, "pod_refused", "pod_removed", "pod_admitted"):
        assert happened[what] > RESIZES // 100, f"{what} is among what happened: {happened}"


def observed(kernel: Machine) -> dict[str, tuple[tuple[str, object], ...]]:
    """Each cgroup with what its files say."""
    return {
        path: tuple(sorted((attribute.value, value) for attribute, value in group.values.items()))
        for path, group in kernel.groups.items()
    }
