"""Memory and huge pages of a NUMA node come and go under the running agent: capacity follows, nobody is touched or started anew."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.model.config import ReservedMemory
from nodeagent.core.model.topology import NumaNode, Topology
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.wakeups import WakeUpReason
from tests.daemon.test_recovery import two_nodes
from tests.support.builders import GIB
from tests.support.daemon_model import Daemon, at_rest
from tests.support.pods import amounts, app, exclusive, pod
from tests.support.world import node

NODE = two_nodes()
MIB = 2**20
HUGE = "hugepages-2Mi"
RESERVE = amounts(None, "100Mi")
"""evictionHard's default: a changed machine is reserved for anew."""
MEMORY: dict[str, Any] = {
    "memory_manager_policy": "Static",
    "reserved_memory": (ReservedMemory(0, RESERVE),),
    "memory_reservation": RESERVE,
}


def with_memory(*bytes_: int, hugepages: tuple[int, ...] = (0, 0)) -> Topology:
    numa = [
        NumaNode(n.id, size, ((HUGE, huge),), n.distances)
        for n, size, huge in zip(NODE.numa, bytes_, hugepages, strict=True)
    ]
    return Topology.of(NODE.cpus, numa, offline=NODE.offline, l3=NODE.l3)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    pods = (pod("a", app("app", resources=exclusive("1", "1Gi"))),)
    with at_rest(monkeypatch, tmp_path, node(with_memory(8 * GIB, 8 * GIB), **MEMORY), pods) as daemon:
        yield daemon


def become(daemon: Daemon, topology: Topology, reason: WakeUpReason = WakeUpReason.HOTPLUG) -> None:
    daemon.hardware.topology = topology
    daemon.turn(reason)
    daemon.rest()


def touched(daemon: Daemon) -> tuple[object, ...]:
    machine = daemon.machine
    return tuple(machine.writes), tuple(machine.starts), tuple(machine.signals), machine.running()


def refusal(daemon: Daemon, name: str) -> str | None:
    entry = next(e for e in daemon.agent.state.entries if e.pod.name == name)
    return None if entry.refusal is None else entry.refusal.reason


@pytest.mark.parametrize("reason", [WakeUpReason.HOTPLUG, WakeUpReason.TIMER], ids=["by uevent", "at the next period"])
def test_a_node_without_most_of_its_memory_takes_no_more_than_it_has(daemon: Daemon, reason: WakeUpReason) -> None:
    there, promises = touched(daemon), daemon.agent.state.promises
    large = pod("large", app("app", resources=exclusive("1", "7680Mi")))
    become(daemon, with_memory(8 * GIB, GIB // 4), reason)
    assert dict(daemon.agent.node.allocatable.amounts)["memory"] < 9 * GIB
    assert touched(daemon) == there
    assert daemon.agent.state.promises.pods == promises.pods
    daemon.files.pods = (*daemon.files.pods, large)
    daemon.rest()
    assert refusal(daemon, "large") == "OutOfmemory"

    become(daemon, with_memory(8 * GIB, 8 * GIB), reason)
    daemon.agent.requests.put(TurnRequest(retried=frozenset({"uid-large"})))
    daemon.rest()
    assert refusal(daemon, "large") is None
    assert daemon.machine.running_containers() == ("poduid-a/app", "poduid-large/app")
    assert daemon.machine.starts[0] == there[1][0], "nobody was started anew"


def test_memory_that_was_promised_and_is_gone_is_reported_until_it_is_back(daemon: Daemon) -> None:
    there = touched(daemon)
    become(daemon, with_memory(GIB // 2, 8 * GIB))
    assert touched(daemon) == there
    (problem,) = daemon.agent.view.problems
    assert problem == "NUMA node 0: 641728512 more bytes of memory are allocated than it has"
    become(daemon, with_memory(8 * GIB, 8 * GIB))
    assert daemon.agent.view.problems == ()
    assert touched(daemon) == there


def test_huge_pages_of_a_node_count_at_once(daemon: Daemon) -> None:
    def room() -> int:
        return dict(daemon.agent.node.allocatable.amounts)[HUGE]

    there = touched(daemon)
    become(daemon, with_memory(8 * GIB, 8 * GIB, hugepages=(0, 64 * MIB)))
    assert room() == 64 * MIB
    become(daemon, with_memory(8 * GIB, 8 * GIB, hugepages=(32 * MIB, 0)), WakeUpReason.TIMER)
    assert room() == 32 * MIB
    assert touched(daemon) == there
