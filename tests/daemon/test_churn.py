"""Pods come, change, fail and go at random, people ask and scrape: the agent stays as small as it was, however long that lasts.

Real manifests, a real watch, real state files and sockets, recorded cgroups. The ordinary run takes seconds; `make soak` an hour.
"""

import ctypes
import gc
import random
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import psutil
import pytest

from nodeagent.daemon.reports.publisher import API_SOCKET, Publisher
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.transport.local_api_client import ApiError, call
from tests.daemon.test_load import MACHINE_64, Quick, agent_of, directories, live
from tests.support.daemon_model import Daemon, answered
from tests.support.figures import Recorder, keep, report
from tests.support.world import node

pytestmark = pytest.mark.whole

TURNS, SECONDS_SOAK = 150, 3600
LOOKS = 20
"""So often the process is measured."""
MOST_GROWTH_MIB = 8.0
"""From the second quarter of the looks to the last one; the first one is for warming up."""
TURNS_REMEMBERED = 100
"""So long the model keeps what other tests want to know: its lists must not be what grows."""
MOST_PODS = 60
SHORT_PAUSE_SECONDS = 0.02
METRICS_SOCKET = "metrics.sock"
UNIT = Path(__file__).parents[2] / "systemd/nodeagent.service"
MALLOPT = {"MALLOC_TRIM_THRESHOLD_": -1, "MALLOC_MMAP_THRESHOLD_": -3}
"""Variables of the environment, and their numbers in malloc.h."""
One = TypeVar("One")
RESTARTS = ("Always", "OnFailure", "Never")


@dataclass(frozen=True)
class Size:
    """What must not grow."""

    rss_mib: float
    descriptors: int
    threads: int


def allocate_as_the_service() -> None:
    """What glibc keeps of freed memory is for the unit to say; it is said here as for a process that runs already."""
    said = dict(re.findall(r"^Environment=(MALLOC_\w+)=(\d+)$", UNIT.read_text(), re.MULTILINE))
    assert said.keys() == MALLOPT.keys()
    for name, value in said.items():
        assert ctypes.CDLL(None).mallopt(MALLOPT[name], int(value)) == 1


def size() -> Size:
    gc.collect()
    process = psutil.Process()
    return Size(process.memory_info().rss / 2**20, process.num_fds(), threading.active_count())


def manifest(dice: random.Random, name: str) -> str:
    """A pod of any kind: alone on its CPUs, sharing, with init containers and sidecars, too large, or no pod at all."""
    if dice.random() < 0.05:
        return "kind: Pod\nmetadata: {name: [\n"
    containers = []
    for number in range(dice.randint(1, 3)):
        cpu, memory = dice.choice((("2", "64Mi"), ("1", "8Mi"), ("100m", "1Mi"), ("999", "1Mi"), ("4", "16Mi")))
        kind = dice.choice(("limits", "limits", "requests"))
        containers.append(
            f"  - {{name: c{number}, command: [run], resources: {{{kind}: {{cpu: {cpu}, memory: {memory}}}}}}}\n"
        )
    init = "  initContainers:\n  - {name: i0, command: [run]}\n" if dice.random() < 0.3 else ""
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: {dice.choice(RESTARTS)}\n"
        f"  terminationGracePeriodSeconds: {dice.randint(0, 3)}\n{init}  containers:\n{''.join(containers)}"
    )


@dataclass
class Churn:
    daemon: Daemon
    machine: Quick
    manifests: Path
    sockets: Path
    dice: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def act(self) -> None:
        """Let one thing happen."""
        self.machine.now_ms = time.time_ns() // 1_000_000
        acts: tuple[Callable[[], None], ...] = (
            self.come,
            self.come,
            self.go,
            self.change,
            self.end,
            self.end,
            self.ask,
        )
        self.dice.choice(acts)()

    def come(self) -> None:
        if len(self.there()) < MOST_PODS:
            self._write(f"p{self.dice.randrange(10 * MOST_PODS)}")
            self.done["arrivals"] += 1

    def go(self) -> None:
        for path in self._one_of(self.there()):
            path.unlink()
            self.done["departures"] += 1

    def change(self) -> None:
        for path in self._one_of(self.there()):
            self._write(path.stem)
            self.done["changes"] += 1

    def end(self) -> None:
        """A container's process ends by itself."""
        for run_id in self._one_of(self.machine.running()):
            self.machine.exit(run_id, self.dice.choice((0, 0, 1, 137)))
            self.done["exits"] += 1

    def ask(self) -> None:
        asked = f"{self.sockets}/{API_SOCKET}"
        try:
            match self.dice.choice(("state", "retry", "metrics")):
                case "state":
                    call(asked, "state")
                case "retry":
                    name = f"p{self.dice.randrange(10 * MOST_PODS)}"
                    answered(self.daemon, lambda: call(asked, "retry", pod=name))
                case _:
                    assert b"nodeagent_build_info" in scrape(self.sockets)
        except ApiError:
            self.done["questions refused"] += 1
        else:
            self.done["questions answered"] += 1

    def there(self) -> list[Path]:
        return sorted(self.manifests.iterdir())

    def forget(self) -> None:
        """Drop what the model keeps for other tests: it is not the agent that grows by that."""
        self.machine.forget()
        self.daemon.steps.done.clear()
        self.daemon.log.seek(0)
        self.daemon.log.truncate()

    def _write(self, name: str) -> None:
        (self.manifests / f"{name}.yaml").write_text(manifest(self.dice, name))

    def _one_of(self, those: Sequence[One]) -> tuple[One, ...]:
        return (self.dice.choice(those),) if those else ()


def scrape(directory: Path) -> bytes:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{directory}/{METRICS_SOCKET}")
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        return b"".join(iter(lambda: client.recv(1 << 16), b""))


def test_random_churn_makes_nothing_grow(tmp_path: Path, record_property: Recorder, *, host_soak: bool) -> None:
    allocate_as_the_service()
    seconds = SECONDS_SOAK if host_soak else 0
    manifests, state = directories(tmp_path)
    machine, sizes = Quick(node(MACHINE_64)), list[Size]()
    config: Any = SimpleNamespace(
        runtime_directory=str(tmp_path),
        metrics_bind_address=f"unix:{tmp_path}/{METRICS_SOCKET}",
        pod_resources_socket="",
    )
    with agent_of(machine.node, machine, manifests, state) as daemon:
        agent = daemon.agent
        live(daemon, lambda: True, WakeUpReason.START)
        with Publisher(agent, config, agent.edges.log):
            churn = Churn(daemon, machine, manifests, tmp_path, random.Random(TURNS))
            began, turns, reasons, progress = time.monotonic(), 0, frozenset({WakeUpReason.MANIFESTS}), 0.0
            while progress < 1:
                for _ in range(churn.dice.randint(0, 3)):
                    churn.act()
                pause = agent.turn(reasons)
                reasons = agent.wakeups.wait(min(pause, SHORT_PAUSE_SECONDS))
                turns += 1
                if turns % TURNS_REMEMBERED == 0:
                    churn.forget()
                elapsed = time.monotonic() - began
                progress = min(turns / TURNS, elapsed / seconds if seconds else 1)
                if progress * LOOKS > len(sizes):
                    churn.forget()
                    sizes.append(size())
        for path in churn.there():
            path.unlink()
        live(daemon, lambda: not agent.state.entries)
        daemon.rest()
        assert [path for path in machine.groups if "pod" in path] == []
        assert not machine.runs
        assert agent.memory.signalled == frozenset()
        assert (state / "nodeagent_state").stat().st_size < 2000, "nothing is kept of those that went"
    quarter = LOOKS // 4
    warm, late = sizes[quarter : 2 * quarter], sizes[-quarter:]
    more_mib = max(s.rss_mib for s in late) - max(s.rss_mib for s in warm)
    counts = dict(churn.done)
    happened = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    report(
        record_property,
        f"churn for {elapsed:.0f} s: {turns} turns, {happened}; {more_mib:+.1f} MiB, {late[-1].descriptors} file descriptors, "
        f"{late[-1].threads} threads",
    )
    if host_soak:
        events = sum(counts.values())
        keep(
            "an hour of churn", "one run", seconds=seconds, events=events, turns=turns, more_MiB=max(0, round(more_mib))
        )
    assert more_mib < MOST_GROWTH_MIB
    # a connection that a client has closed is there until the serving thread sees it
    assert min(s.descriptors for s in late) <= min(s.descriptors for s in warm)
    assert min(s.threads for s in late) <= min(s.threads for s in warm)
    assert set(counts) == {"arrivals", "departures", "changes", "exits", "questions answered", "questions refused"}
