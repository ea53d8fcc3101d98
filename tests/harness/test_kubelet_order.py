"""The no-overlap proof's negative control takes effect: a moved function would otherwise be found in a guest only."""

import sys
from pathlib import Path

import pytest

from integration.overlap.kubelet_order import main
from nodeagent.daemon import service
from tests.daemon.test_recovery import two_nodes
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import node

SHARED = "shared/pool/payload/besteffort/poduid-shared/app"


@pytest.mark.parametrize("words", [[], ["--resizes-first"]])
def test_running_containers_stay_on_the_cpus_of_a_new_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    machine = Machine(node(two_nodes()))
    daemon = Daemon(machine, tmp_path, steps=Steps())

    def serve(_: str) -> int:
        daemon.start()
        daemon.files.pods = (pod("shared"),)
        daemon.turn()
        daemon.turn()
        daemon.files.pods += (pod("alone", app(cpu="2")),)
        daemon.turn()
        return 0

    with watched(monkeypatch, machine, daemon.steps):
        monkeypatch.setattr(service, "serve", serve)
        monkeypatch.setattr(sys, "argv", ["kubelet_order", "config.yaml", *words])
        assert main() == 0
    own = machine.listed("poduid-alone/app")
    assert own
    assert machine.effective(SHARED) >= own
