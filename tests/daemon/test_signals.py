"""Processes that are to end are asked first, in each life of their pod."""

from pathlib import Path

import pytest

from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import cgroup_only, pod
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
        assert agent.runner.signalled == frozenset()
