"""Swap in the agent's turns: none for containers by default, those that run already included."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.core.model.cgroup import Attribute, ByteLimit
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, node

APP = "poduid-a/app"


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    machine = Machine(node(SMALL))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    daemon.files.pods = (pod("a", app(cpu="1")),)
    with watched(monkeypatch, machine, daemon.steps):
        yield daemon


def test_a_container_that_runs_already_loses_its_swap_and_nothing_else(daemon: Daemon) -> None:
    """As after an upgrade from an agent that left swap alone."""
    daemon.start()
    daemon.rest()
    container = daemon.machine.groups[APP]
    assert container.values[Attribute.MEMORY_SWAP_MAX] == ByteLimit(0)
    del container.values[Attribute.MEMORY_SWAP_MAX]
    before, starts = list(daemon.machine.writes), list(daemon.machine.starts)
    daemon.start()
    daemon.rest()
    (write,) = daemon.machine.writes[len(before) :]
    assert (write.path, container.values[Attribute.MEMORY_SWAP_MAX]) == (APP, ByteLimit(0))
    assert daemon.machine.starts == starts
    assert not daemon.agent.view.problems


def test_a_kernel_without_limits_of_swap_is_told_nothing_of_it(daemon: Daemon) -> None:
    daemon.machine.limits_swap = False
    daemon.start()
    daemon.rest()
    assert Attribute.MEMORY_SWAP_MAX not in daemon.machine.groups[APP].values
    assert len(daemon.machine.starts) == 1
    assert not daemon.agent.view.problems
