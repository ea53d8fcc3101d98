"""An agent whose device plugin registers after a pod came that asks for its devices: the pod waits for it, and is told what it answers."""

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.core.resources.devices.holdings import DeviceHoldings, HeldDevice
from nodeagent.core.resources.devices.pools import DevicePool, PoolDevice
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
            daemon.rest()
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


def test_slow_plugins_hold_up_neither_the_watchdog_nor_other_pods_and_serve_a_large_pod_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call takes 4.2 s by the clock, and none in truth. The pod needs 16 of them, and 8 more to start."""
    asked: list[tuple[str, list[str]]] = []

    def clock() -> float:
        return 4.2 * len(asked)

    beats: list[float] = []
    machine = Machine(node(two_nodes()))
    daemon = Daemon(machine, tmp_path / "agent", steps=Steps(), alive=lambda: beats.append(clock()))
    (tmp_path / "agent").mkdir()
    daemon.plugins = plugins = DevicePlugins(
        tmp_path / "kubelet.sock",
        lambda: daemon.agent.wakeups.wake(WakeUpReason.DEVICES),
        make_log(daemon.log),
        clock,
    )
    slow = pod("slow", *(app(f"c{n}", cpu="100m", devices={GPU: 1}) for n in range(8)))
    others = (pod("late", app(cpu="100m", devices={GPU: 1})), pod("plain", app(cpu="1")))
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        with serving(daemon, plugins, tmp_path), ExitStack() as undo:
            made = DevicePlugin(tmp_path, GPU)
            undo.callback(made.stop)
            made.asked = asked
            made.options.get_preferred_allocation_available = made.options.pre_start_required = True
            made.register()
            made.tell(*((f"d{n}", True, None) for n in range(10)))
            while not plugins.pools() or not plugins.pools()[0].healthy:
                assert daemon.agent.wakeups.wait(PATIENCE_SECONDS) == {WakeUpReason.DEVICES}
            daemon.files.pods = (slow, *others)
            for turn in range(20):
                before = len(asked)
                pause = daemon.turn()
                assert len(asked) - before <= 3, "10 s begin the third call, and no fourth"
                assert daemon.agent.state.entry("uid-plain") is not None, "it needs no plugin"
                if turn == 0:
                    waiting = [text for text in daemon.agent.view.problems if " waits: " in text]
                    assert [text.partition(" waits: ")[0] for text in waiting] == [
                        "pod default/slow",
                        "pod default/late",
                    ]
                    assert "device plugins have taken more than 10 s of a turn" in waiting[0]
                    assert pause <= 1.0
            daemon.rest()
    assert max(after - before for before, after in pairwise(beats)) < 5.0
    kinds = Counter(kind for kind, _ in asked)
    assert kinds == {"preferred": 9, "allocate": 9, "prepare": 9}, "no question is asked again"
    assert sorted(one.identifier for one in daemon.requests) == sorted(
        [*(f"slow/c{n}" for n in range(8)), "late/app", "plain/app"]
    )
    assert [text for text in daemon.agent.view.problems if " waits: " in text] == []
    refused = [line for line in daemon.said() if line["event"] in {"pod_refused", "container_exited"}]
    assert refused == [], "it waits, and nothing of that is a refusal"


class Plugged:
    """What plugins have told, without plugins."""

    def __init__(self) -> None:
        self.now: tuple[DevicePool, ...] = ()

    def pools(self) -> tuple[DevicePool, ...]:
        return self.now

    def problems(self) -> tuple[str, ...]:
        return ()

    def begin_turn(self, _alive: Callable[[], None], /) -> None: ...

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
