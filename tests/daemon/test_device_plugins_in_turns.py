"""An agent whose device plugin registers after a pod came that asks for its devices: the pod waits for it, and is told what it answers."""

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.core.model.device_pools import DevicePool, PoolDevice
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.waiting import RequestKind, Retry
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.plugins.device_plugins import DevicePlugins
from nodeagent.daemon.reports.logs import make_log
from nodeagent.daemon.reports.publisher import Publisher
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.formats.checkpoint.device_checkpoint import decode_devices
from tests.daemon.test_recovery import two_nodes
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.device_plugin import PATIENCE_SECONDS, DevicePlugin
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import node

GPU = "example.com/gpu"


def test_a_pod_waits_for_the_plugin_and_starts_with_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(node(two_nodes(), topology_manager_policy="restricted"))
    daemon = Daemon(machine, tmp_path / "agent", steps=Steps())
    daemon.plugins = plugins = DevicePlugins(
        tmp_path / "kubelet.sock", lambda: daemon.agent.wakeups.wake(WakeUpReason.DEVICES), make_log(daemon.log)
    )
    (tmp_path / "agent").mkdir()
    asking = pod("p", app(cpu="1", devices={GPU: 1}))
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        daemon.files.pods = (asking,)
        daemon.rest()
        agent = daemon.agent
        assert agent.state.entries[0].refusal is not None
        with serving(daemon, plugins, tmp_path):
            made = DevicePlugin(tmp_path, GPU)
            made.envs = {"GPU_VISIBLE": "a"}
            made.options.pre_start_required = True
            made.register()
            made.tell(("a", True, 1))
            while not plugins.pools()[0].healthy:
                assert agent.wakeups.wait(PATIENCE_SECONDS) == {WakeUpReason.DEVICES}
            while not daemon.requests:
                agent.wakeups.wait(daemon.turn())
            made.stop()
        (request,) = (one for one in daemon.requests if one.identifier == "p/app")
        assert dict(request.env)["GPU_VISIBLE"] == "a"
        assert made.asked == [("allocate", ["a"]), ("prepare", ["a"])]
        (written,) = (tmp_path / "agent").rglob("kubelet_internal_checkpoint")
        ((_, (device,)),) = decode_devices(written.read_text())[asking.uid].of(DeviceHoldings).devices
        assert device.id == "a"


@contextmanager
def serving(daemon: Daemon, plugins: DevicePlugins, directory: Path) -> Iterator[None]:
    """Let plugins register with an agent."""
    config: Any = SimpleNamespace(
        runtime_directory=str(directory),
        metrics_bind_address="",
        pod_resources_socket="",
        device_plugin_socket=f"{directory}/kubelet.sock",
    )
    with Publisher(daemon.agent, config, daemon.agent.edges.log, None, plugins):
        yield


def test_slow_plugins_hold_up_no_other_pod_and_serve_a_large_pod_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The large pod needs 16 answers, and 8 more to start."""
    machine = Machine(node(two_nodes()))
    daemon = Daemon(machine, tmp_path / "agent", steps=Steps())
    (tmp_path / "agent").mkdir()
    daemon.plugins = plugins = DevicePlugins(
        tmp_path / "kubelet.sock",
        lambda: daemon.agent.wakeups.wake(WakeUpReason.DEVICES),
        make_log(daemon.log),
    )
    slow = pod("slow", *(app(f"c{n}", cpu="100m", devices={GPU: 1}) for n in range(8)))
    others = (pod("late", app(cpu="100m", devices={GPU: 1})), pod("plain", app(cpu="1")))
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        with serving(daemon, plugins, tmp_path), ExitStack() as undo:
            made = DevicePlugin(tmp_path, GPU)
            undo.callback(made.stop)
            made.options.get_preferred_allocation_available = made.options.pre_start_required = True
            made.answers.clear()
            made.register()
            made.tell(*((f"d{n}", True, None) for n in range(10)))
            while not plugins.pools() or not plugins.pools()[0].healthy:
                assert daemon.agent.wakeups.wait(PATIENCE_SECONDS) == {WakeUpReason.DEVICES}
            daemon.files.pods = (slow, *others)
            agent, reasons = daemon.agent, frozenset[WakeUpReason]()
            while ("allocate", ["d0"]) not in made.asked:
                daemon.turn(*reasons)
                reasons = agent.wakeups.wait(0.1)
            daemon.rest()
            assert [entry.pod.name for entry in agent.state.entries] == ["plain"], "it needs no plugin"
            waiting = [one for entry in agent.view.state.entries for one in entry.waiting]
            assert [(kind, one.reason, one.retries(kind)) for kind, one in waiting] == [
                (RequestKind.POD, Reason.DEVICE_PLUGINS_SLOW, (Retry.PLUGIN,))
            ] * 2
            assert [one.message for _, one in waiting] == [
                f"the device plugin of {GPU}: it has not answered yet",
                f"the device plugin of {GPU} has not answered about another pod yet",
            ]
            since_ms = {one.at_ms for _, one in waiting}
            machine.now_ms += 1000
            daemon.rest()
            waiting = [one for entry in agent.view.state.entries for one in entry.waiting]
            assert {one.at_ms for _, one in waiting} == since_ms
            assert not agent.view.problems
            made.answers.set()
            while len(daemon.requests) < 10:
                reasons = agent.wakeups.wait(daemon.turn(*reasons))
            daemon.rest()
    asked = Counter(kind for kind, _ in made.asked)
    assert asked["prepare"] == 9, "no question is asked again"
    again = asked["allocate"] - 9, asked["preferred"] - 9
    assert all(0 <= times <= 8 for times in again), "unless another pod has taken a device meanwhile"
    assert sorted(one.identifier for one in daemon.requests) == sorted(
        [*(f"slow/c{n}" for n in range(8)), "late/app", "plain/app"]
    )
    assert not any(entry.waiting for entry in daemon.agent.view.state.entries)
    unwanted = {"pod_refused", "container_exited", "problem"}
    assert [line for line in daemon.said() if line["event"] in unwanted] == [], "nothing of that is a refusal"


class Plugged:
    """What plugins have told, without plugins."""

    def __init__(self) -> None:
        self.now: tuple[DevicePool, ...] = ()

    def pools(self) -> tuple[DevicePool, ...]:
        return self.now

    def problems(self) -> tuple[str, ...]:
        return ()

    def begin_turn(self) -> None: ...

    def prepare(self, _held: tuple[HeldDevice, ...]) -> None: ...


def without_cgroups(daemon: Daemon, undo: pytest.MonkeyPatch) -> None:
    def unreadable(_own: frozenset[str]) -> dict[str, Any]:
        raise CgroupError("Input/output error", path="cpuset.cpus", error=5, hint="see `dmesg`")

    undo.setattr(daemon.agent.edges.tree, "read", unreadable)


def without_saving(daemon: Daemon, undo: pytest.MonkeyPatch) -> None:
    undo.setattr(daemon.steps, "fails", lambda _number, _call: errno.ENOSPC)


def without_manifests(daemon: Daemon, undo: pytest.MonkeyPatch) -> None:
    undo.setattr(daemon.files, "look_again", PodSource(is_blind=True))


@pytest.mark.parametrize("lame", [without_cgroups, without_saving, without_manifests])
def test_a_pod_that_waits_for_a_plugin_is_not_forgotten_by_a_turn_that_cannot_decide_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lame: Callable[[Daemon, pytest.MonkeyPatch], None]
) -> None:
    machine = Machine(node(two_nodes()))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    plugged: Any = Plugged()
    daemon.plugins = plugged
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        daemon.files.pods = (pod("p", app(cpu="1", devices={GPU: 1})),)
        daemon.rest()
        assert daemon.agent.state.entries[0].refusal is not None
        plugged.now = (DevicePool(GPU, (PoolDevice("a"),)),)
        with monkeypatch.context() as undo:
            lame(daemon, undo)
            for _ in range(2):
                daemon.turn(WakeUpReason.DEVICES)
        assert daemon.agent.state.entries[0].refusal is not None
        daemon.rest()
        assert daemon.agent.state.entries[0].is_active
