"""Processes that are to end are asked first, in each life of their pod."""

import errno
from pathlib import Path

import pytest

from nodeagent.core.model.pod import Container
from nodeagent.daemon.turn.wakeups import WakeUpReason
from tests.support.daemon_model import DEAF, Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, cgroup_only, job, pod, sidecar
from tests.support.world import SMALL, node


def test_who_entered_a_slot_is_asked_to_end_in_every_life_of_its_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(node(SMALL))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    mine = pod("a", cgroup_only())
    with watched(monkeypatch, machine, daemon.steps):
        agent = daemon.start()
        for life in range(1, 4):
            daemon.files.pods = (mine,)
            daemon.rest()
            (path,) = (one for one in machine.groups if one.endswith("/slot"))
            machine.enter(path)
            daemon.files.pods = ()
            daemon.rest()
            assert machine.signals == [("TERM", path)] * life
            machine.now_ms += 1000
        assert agent.memory.signalled == frozenset()


@pytest.mark.parametrize("kind", [app(), cgroup_only()], ids=["command", "slot"])
def test_a_container_that_cannot_be_sent_sigterm_is_killed_after_its_grace_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Container
) -> None:
    machine = Machine(node(SMALL))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (pod("a", kind, termination_grace_seconds=10),)
        agent = daemon.start()
        daemon.rest()
        (path,) = (one for one in machine.groups if one.endswith(f"/{kind.name}"))
        if not kind.command:
            machine.enter(path)
        machine.is_deaf = True
        daemon.files.pods = ()
        for _ in range(10):
            daemon.turn(WakeUpReason.TIMER)
            assert any(DEAF in problem for problem in agent.view.problems)
            assert machine.signals == []
            machine.now_ms += 1000
        daemon.rest()
        assert machine.signals == [("KILL", path)]
        assert (agent.state.entries, agent.memory.asked, agent.view.problems) == ((), frozenset(), ())


@pytest.mark.parametrize("is_full", [False, True], ids=["saved", "disk full"])
def test_an_agent_that_was_away_for_the_grace_period_of_a_pod_that_finishes_asks_before_it_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_full: bool
) -> None:
    machine = Machine(node(SMALL))
    machine.stubborn = {"side"}
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (job("a", sidecar(), app(), termination_grace_seconds=10),)
        daemon.start()
        daemon.rest()
        machine.exit(machine.run_of("app"))
        while not machine.signals:
            daemon.turn()
        machine.now_ms += 11_000
        daemon.start()
        daemon.steps.fails = lambda _number, _call: errno.ENOSPC if is_full else None
        daemon.turn(WakeUpReason.START)
        for seconds in (9, 1):
            assert [kind for kind, _ in machine.signals] == ["TERM", "TERM"]
            machine.now_ms += seconds * 1000
            daemon.turn(WakeUpReason.TIMER)
        assert [kind for kind, _ in machine.signals] == ["TERM", "TERM", "KILL"]
