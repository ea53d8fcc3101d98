"""What `Node` lets a test read, and when; without a guest."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from integration.guest.errors import GuestTimeoutError
from integration.guest.guest import Completed
from integration.node import MANIFESTS, STATE, Document, Node, container, pod

SLEEP = ["sleep", "infinity"]
PINNED = pod("pinned", container("app", SLEEP, cpu="2"))
SLOT = pod("slot", container("slot", None, cpu="2"))


class Waiting:
    def __init__(self, looks: int) -> None:
        self.looks = looks


class StubGuest:
    """Has pods as the test says; each look at its metrics is a step, and whoever waits looks five times at most."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.entries: list[Document] = []
        self.generation, self.reported = 1, 1
        self.ran: list[str] = []

    def run(self, command: str, **_: object) -> Completed:
        self.ran.append(command)
        if "/metrics" in command:
            said = f"nodeagent_state_generation {self.reported}.0\n"
            self.reported = self.generation
            return Completed(0, said, "")
        if "inspect -o json" in command:
            return Completed(0, json.dumps({"node": {"generation": self.generation}}), "")
        return Completed(0, "", "")

    def put(self, path: str, content: str | bytes) -> None:
        self.files[path] = content if isinstance(content, str) else content.decode()

    def get(self, path: str) -> bytes:
        if path != f"{STATE}/nodeagent_state":
            return b"0-3\n"
        return b"header\n" + json.dumps({"generation": self.generation, "entries": self.entries}).encode()

    def has(self, made: Document, **more: Any) -> None:
        """Have the agent save a pod; it tells of it when it is asked a second time."""
        running = [{"name": one["name"], "startedAtMs": 1} for one in made["spec"]["containers"] if "command" in one]
        source = f"{made['metadata']['name']}.json"
        self.entries.append({"pod": made, "source": source, "containers": running, **more})
        self.generation += 1

    def wait(self, _: float) -> Waiting:
        return Waiting(0)

    def is_over(self, wait: Waiting) -> bool:
        wait.looks += 1
        return wait.looks > 2

    def in_vain(self, problem: str) -> GuestTimeoutError:
        return GuestTimeoutError(problem)


@pytest.fixture
def guest() -> StubGuest:
    return StubGuest()


@pytest.fixture
def node(guest: StubGuest) -> Node:
    stub: Any = guest
    return Node(stub)


READINGS: dict[str, Callable[[Node], object]] = {
    "footprint": Node.footprint,
    "inspect": Node.inspect,
    "inspect_pod": lambda node: node.inspect_pod("pinned"),
    "metrics": Node.metrics,
    "value": lambda node: node.value(node.cgroup("pinned", "app"), "cpuset.cpus"),
    "pids": lambda node: node.pids(node.cgroup("pinned", "app")),
    "wait": lambda node: node.wait(lambda _: True, "nothing"),
    "wait_running": lambda node: node.wait_running("pinned"),
    "wait_gone": lambda node: node.wait_gone("pinned"),
}
CHANGES: dict[str, Callable[[Node], object]] = {
    "apply": lambda node: node.apply(SLOT),
    "put_manifest": lambda node: node.put_manifest("any.yaml", "two: of them", "slot", "pinned"),
    "delete": lambda node: node.delete("slot"),
}


@pytest.mark.parametrize("reading", READINGS.values(), ids=READINGS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_is_read_before_each_pod_that_comes_or_goes_is_waited_for(
    node: Node, guest: StubGuest, change: Callable[[Node], object], reading: Callable[[Node], object]
) -> None:
    guest.has(PINNED)
    guest.has(SLOT)
    change(node)
    with pytest.raises(AssertionError, match=r"slot.*no wait names them"):
        reading(node)


def test_what_is_waited_for_can_be_read(node: Node, guest: StubGuest) -> None:
    node.apply(PINNED, SLOT)
    assert json.loads(guest.files[f"{MANIFESTS}/slot.json"]) == SLOT
    guest.has(PINNED)
    guest.has(SLOT)
    node.wait_running("pinned", "slot")
    node.footprint()
    assert node.value(node.cgroup("slot", "slot"), "cpuset.cpus") == "0-3"
    node.delete("slot")
    del guest.entries[1]
    node.wait_gone("slot")
    assert node.inspect() == {"node": {"generation": guest.generation}}


def test_what_a_log_line_says_is_waited_for(node: Node, guest: StubGuest, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: str, **_: object) -> Completed:
        line = {"MESSAGE": '{"event": "pod_refused"}', "_SYSTEMD_UNIT": "nodeagent.service"}
        return Completed(0, json.dumps(line) if "journalctl" in command else "nodeagent_state_generation 1", "")

    monkeypatch.setattr(guest, "run", run)
    node.apply(PINNED)
    assert node.wait_log("cursor", "pod_refused", of=("pinned",)) == {"event": "pod_refused"}
    assert node.metrics() == {"nodeagent_state_generation": 1}


@pytest.mark.parametrize(
    "wait", [lambda node: node.wait_running("slot"), Node.wait_decided], ids=["running", "decided"]
)
def test_a_container_without_a_command_is_there_when_the_agent_has_reported_it(
    node: Node, guest: StubGuest, wait: Callable[[Node], Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is saved before its cgroup is made."""
    guest.has(SLOT)
    guest.files["listed"] = "slot.json"
    ran = guest.run

    def run(command: str, **_: object) -> Completed:
        """List the manifests' directory, too."""
        return Completed(0, "slot.json\n", "") if command.startswith("ls ") else ran(command)

    monkeypatch.setattr(guest, "run", run)
    wait(node)
    assert len([command for command in guest.ran if "/metrics" in command]) == 2
    assert guest.reported == guest.generation


def test_a_container_runs_when_its_start_is_saved_and_its_cgroup_has_processes(
    node: Node, guest: StubGuest, monkeypatch: pytest.MonkeyPatch
) -> None:
    guest.has(PINNED, qos="Guaranteed", containers=[{"name": "app", "attempt": 1}])
    get, events = guest.get, {f"{node.cgroup('pinned', 'app')}/cgroup.events": b"populated 0\n"}
    monkeypatch.setattr(guest, "get", lambda path: events.get(path) or get(path))
    with pytest.raises(GuestTimeoutError, match="pinned to run"):
        node.wait_running("pinned")
    events |= dict.fromkeys(events, b"populated 1\n")
    node.wait_running("pinned")


def test_a_footprint_is_taken_when_the_agent_has_done_what_is_saved(node: Node, guest: StubGuest) -> None:
    guest.has(PINNED)
    node.footprint()
    asked = ["/metrics" in command for command in guest.ran]
    assert asked == [True, True, False]


def test_a_refused_pod_is_waited_for_by_name(node: Node, guest: StubGuest) -> None:
    big = pod("big", container("app", SLEEP, cpu="64"))
    node.apply(PINNED, big)
    guest.has(PINNED)
    with pytest.raises(GuestTimeoutError, match="pinned to run and big to be refused"):
        node.wait_running("pinned", refused=("big",))
    guest.has(big, refusal=["OutOfcpu", "", 0])
    assert node.wait_running("pinned", refused=("big",))["entries"] == guest.entries
    with pytest.raises(AssertionError, match="OutOfcpu"):
        node.wait_running("big")


def test_what_is_asked_for_again_and_again_is_so_as_often_as_was_said_however_long_it_takes(node: Node) -> None:
    asked: list[int] = []

    def fail() -> None:
        asked.append(1)

    with pytest.raises(GuestTimeoutError, match=r"in vain, for .*: the pod"):
        node.until(fail, lambda: "the pod", least_looks=7)
    # three that the wait has room for come after the first six
    assert len(asked) == 6 + 3
    asked.clear()
    with pytest.raises(GuestTimeoutError):
        node.until(fail, lambda: "the pod")
    assert len(asked) == 3
