"""A turn may take longer than the service manager's watchdog waits: it is told between the turn's parts that the work gets on."""

import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.turn.decision import admit_off_orphans
from nodeagent.daemon.reports import metrics_recorder as metrics
from nodeagent.daemon.sources.manifest_list import ManifestList
from nodeagent.daemon.turn.heartbeat import Heartbeat
from nodeagent.edge.files.manifest_watch import ManifestWatch
from nodeagent.edge.systemd.service_manager import NotifyError, ServiceManager
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, node

WATCHDOG_SECONDS = 60.0
"""WatchdogSec= of nodeagent.service."""
PART_SECONDS = 4.0
"""What each decision, write and start takes here: a node that is hardly able to."""


class SlowNode:
    """A clock that moves with the work, and a service manager that listens by it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heard: list[tuple[float, str]] = []
        self.is_deaf = False
        manager: Any = self
        self.heart = Heartbeat(manager, lambda: self.now)

    def work(self) -> None:
        self.now += PART_SECONDS

    def ping_watchdog(self) -> None:
        self._hear("alive")

    def extend_start(self, seconds: int) -> None:
        assert seconds > WATCHDOG_SECONDS
        self._hear("starting")

    def _hear(self, what: str) -> None:
        if self.is_deaf:
            raise NotifyError("nobody listens", hint="")
        self.heard.append((self.now, what))

    def longest_silence(self, began: float) -> float:
        times = [began, *(at for at, _ in self.heard if at >= began), self.now]
        return max(later - earlier for earlier, later in pairwise(times))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowNode:
    slow = SlowNode()

    def decide(*arguments: Any) -> Any:
        slow.work()
        return admit_off_orphans(*arguments)

    monkeypatch.setattr(metrics, "admit_off_orphans", decide)
    return slow


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: SlowNode) -> Iterator[Daemon]:
    machine = Machine(node(SMALL))

    def denies(_name: str) -> None:
        slow.work()

    daemon = Daemon(machine, tmp_path, steps=Steps(denies=denies), alive=slow.heart.beat)
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        yield daemon


def test_a_turn_of_many_minutes_is_no_hang(daemon: Daemon, slow: SlowNode) -> None:
    daemon.turn()
    slow.heart.is_ready = True
    daemon.files.pods = tuple(pod(f"p{n}", app(f"c{n}", "10m")) for n in range(40))
    began = slow.now
    daemon.turn()
    assert slow.now - began > 5 * WATCHDOG_SECONDS
    assert slow.longest_silence(began) < WATCHDOG_SECONDS / 2
    assert {what for at, what in slow.heard if at > began} == {"alive"}


def test_a_start_of_many_minutes_is_given_the_time(daemon: Daemon, slow: SlowNode) -> None:
    daemon.files.pods = tuple(pod(f"p{n}", app(f"c{n}", "10m")) for n in range(40))
    daemon.turn()
    assert slow.now > 5 * WATCHDOG_SECONDS
    assert slow.longest_silence(0.0) < WATCHDOG_SECONDS / 2
    assert {what for _, what in slow.heard} == {"starting"}


def test_work_that_does_not_get_on_gives_no_sign(slow: SlowNode) -> None:
    slow.now += 1000
    assert slow.heard == []


def test_signs_are_few_however_much_is_done(slow: SlowNode) -> None:
    for _ in range(10_000):
        slow.heart.beat()
    assert slow.heard == []


def test_a_service_manager_that_does_not_listen_ends_no_turn(daemon: Daemon, slow: SlowNode) -> None:
    slow.is_deaf = True
    daemon.files.pods = tuple(pod(f"p{n}", app(f"c{n}", "10m")) for n in range(10))
    daemon.rest()
    assert len(daemon.machine.running()) == 10


def test_each_new_manifest_is_a_part_of_the_turn(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number}.yaml").write_text("kind: Pod\n")
    read = []
    files = ManifestList(str(tmp_path), ManifestWatch(str(tmp_path), lambda: None), 20.0, alive=lambda: read.append(1))
    try:
        files.look(rescan=True)
    finally:
        files.close()
    assert len(read) == 20


def test_a_real_service_manager_is_notified_in_its_words(tmp_path: Path) -> None:
    times = iter([0.0, 10.0, 20.0])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        heart = Heartbeat(ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify")}), lambda: next(times))
        heart.beat()
        assert manager.recv(4096) == b"EXTEND_TIMEOUT_USEC=90000000"
        heart.is_ready = True
        heart.beat()
        assert manager.recv(4096) == b"WATCHDOG=1"
