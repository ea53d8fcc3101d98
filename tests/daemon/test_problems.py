"""What doesn't work is told once, and under the pod that it is about: who looks for the pod finds why it doesn't start or end."""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.core.model.cgroup import Attribute
from nodeagent.daemon.turn.problem import Problem, owner_fields
from nodeagent.daemon.turn.runs import Runner
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, init, pod
from tests.support.world import SMALL, node

NEW = pod("new", init("first", "1"), app("app", "2"))
POD = {"pod": NEW.full_name, "pod_uid": NEW.uid}
FIRST = {**POD, "container": "first"}


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    machine = Machine(node(SMALL))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        machine.stubborn.add("app")
        daemon.files.pods = (pod("a", app("app", "1")),)
        daemon.start()
        daemon.rest()
        yield daemon


def denied(daemon: Daemon, what: str) -> None:
    def answer(name: str) -> CgroupError | None:
        if what not in name:
            return None
        return CgroupError(f"cannot do '{name}': busy", path=name, error=errno.EBUSY, hint="it is denied on purpose")

    daemon.steps.denies = answer


def reported(daemon: Daemon, event: str) -> list[dict[str, str]]:
    """The fields that a line of that event has besides those of every line."""
    usual = {"event", "level", "timestamp", "problem"}
    lines = [line for line in daemon.said() if line["event"] == event]
    return [{name: value for name, value in line.items() if name not in usual} for line in lines]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (f"MakeCgroup pod{NEW.uid} ", POD),
        (f"MakeCgroup pod{NEW.uid}/first ", FIRST),
        (f"SetAttribute pod{NEW.uid}/first {Attribute.CPUSET_CPUS}", FIRST),
        (f"start {NEW.uid}/first/", FIRST),
    ],
)
def test_what_keeps_a_pod_from_starting(what: str, expected: dict[str, str], daemon: Daemon) -> None:
    denied(daemon, what)
    daemon.files.pods = (*daemon.files.pods, NEW)
    for _ in range(4):
        daemon.turn()
    assert reported(daemon, "trouble") == [expected]
    daemon.steps.denies = lambda _: None
    daemon.rest()
    assert reported(daemon, "trouble_over") == [expected]


def test_what_keeps_a_pod_from_ending(daemon: Daemon) -> None:
    (first,) = daemon.files.pods
    denied(daemon, f"kill pod{first.uid}")
    daemon.files.pods = ()
    for _ in range(3):
        daemon.turn()
        daemon.machine.now_ms += 60_000
    assert reported(daemon, "trouble") == [{"pod": first.full_name, "pod_uid": first.uid, "container": "app"}]


def test_a_cgroup_of_no_pod_has_no_owner(daemon: Daemon) -> None:
    (first,) = daemon.files.pods
    state = daemon.agent.state
    owners = [
        owner_fields(state, path) for path in ("", "holder", "burstable", f"pod{first.uid}1", f"pod{first.uid}/x")
    ]
    assert owners == [{}] * 5


def test_no_cgroup_is_made_while_the_pods_unit_goes(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd has ended the launcher and removes cgroups: what is made again below keeps it from removing the unit's own."""
    (first,) = daemon.files.pods
    gone = f"pod{first.uid}"

    def silent(_runner: Runner) -> Problem:
        return Problem("the launcher does not answer")

    with monkeypatch.context() as stopping:
        stopping.setattr(Runner, "look", silent)
        for path in (f"{gone}/app", gone):
            del daemon.machine.groups[path]
        daemon.files.pods = (first, NEW)
        for _ in range(3):
            daemon.turn()
        assert [path for path in daemon.machine.groups if path.startswith("pod")] == []
    daemon.rest()
    assert {gone, f"pod{NEW.uid}"} <= daemon.machine.groups.keys()
