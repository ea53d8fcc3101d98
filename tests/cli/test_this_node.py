"""What `inspect` finds of the host on exclusive CPUs."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.cli.support.node import observation
from nodeagent.core.host.settings import Setting, SettingKind
from nodeagent.core.model.host_processes import HostInterrupt
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.resources.cpu.holdings import exclusive_cpus, own_set_of
from nodeagent.edge.kernel import interrupts
from nodeagent.edge.kernel.host_settings import HostSettingsFiles
from nodeagent.formats.node_view import NodeView
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, node

QUIET = node(SMALL, config={"interrupt_isolation": "affinity"})


def view_of(directory: Path, monkeypatch: pytest.MonkeyPatch, *pods: Pod) -> NodeView:
    machine, steps = Machine(QUIET), Steps()
    with watched(monkeypatch, machine, steps):
        daemon = Daemon(machine, directory, steps=steps)
        daemon.start()
        daemon.files.pods = pods
        daemon.rest()
    return daemon.agent.view


@pytest.mark.parametrize(
    ("by_web", "by_shared", "is_shown"),
    [((), (), True), (("eth0",), (), False), ((), ("eth0",), True)],
    ids=["unclaimed", "claimed", "claimed without CPUs"],
)
def test_an_interrupt_is_shown_unless_a_container_has_it_on_its_cpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    by_web: tuple[str, ...],
    by_shared: tuple[str, ...],
    *,
    is_shown: bool,
) -> None:
    pods = (
        pod("web", app(cpu="2", interrupts=by_web)),
        pod("other", app(cpu="1")),
        pod("shared", app(cpu="500m", interrupts=by_shared)),
    )
    view = view_of(tmp_path, monkeypatch, *pods)
    (web,) = [entry.pod.uid for entry in view.state.entries if entry.pod.name == "web"]
    own, exclusive = own_set_of(view.state.promises, web, "app"), exclusive_cpus(view.state.promises)
    assert own is not None
    monkeypatch.setattr(HostSettingsFiles, "interrupts_of", lambda *_: frozenset({Setting(SettingKind.IRQ, "24")}))
    for cpus, left in ((own, CpuSet()), (exclusive, exclusive - own)):
        found = HostInterrupt(24, "eth0", cpus, is_bound=False)
        monkeypatch.setattr(interrupts, "find_interrupts_on", lambda _, found=found: (found,))
        host = observation.add_observation(view, host_processes=True).observation.host
        shown = cpus if is_shown else left
        assert host.interrupts == ((replace(found, cpus=shown),) if shown else ())
