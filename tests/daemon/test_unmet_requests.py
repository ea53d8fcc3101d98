"""Requests that are not met: what brings them back lasts until a turn has decided them and saved that. A turn at rest repeats nothing."""

from pathlib import Path
from typing import Any

import pytest

from nodeagent.core.model.config import RETRY_FOR_ROOM, RETRY_NOTHING
from nodeagent.core.model.device_pools import (
    DevicePluginFailedError,
    DevicePluginPostponedError,
    DevicePool,
    PoolDevice,
)
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.daemon.start.startup import CPU_CHECKPOINT, MEMORY_CHECKPOINT, STATE_FILE
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.wakeups import WakeUpReason
from tests.daemon.test_recovery import two_nodes
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, Node, node

GPU = "example.com/gpu"


class Plugin:
    """A device plugin that answers with nothing, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    def describe_wait(self, _pod_uid: str) -> str:
        return ""

    def preferred(self, *_: object) -> tuple[str, ...]:
        return ()

    def allocate(self, *_: object) -> bytes:
        if self.failure is not None:
            raise self.failure
        return b""


class Plugins:
    """All device plugins, with the pools that they have reported."""

    def __init__(self, *pools: DevicePool) -> None:
        self.now = pools

    def pools(self) -> tuple[DevicePool, ...]:
        return self.now

    def begin_turn(self) -> None: ...

    def problems(self) -> tuple[str, ...]:
        return ()

    def prepare(self, held: object) -> None: ...


def started(directory: Path, of: Node, retry: str, plugins: Any = None) -> Daemon:
    daemon = Daemon(Machine(of), directory, steps=Steps(), config={"retry_refused": retry})
    daemon.plugins = plugins
    daemon.start()
    daemon.rest()
    return daemon


def entry(daemon: Daemon, name: str) -> PodEntry:
    return next(one for one in daemon.agent.state.entries if one.pod.name == name)


def pool(plugin: Any, *usable: str, others: tuple[str, ...] = ()) -> DevicePool:
    devices = (*(PoolDevice(one) for one in usable), *(PoolDevice(one, is_healthy=False) for one in others))
    return DevicePool(GPU, devices, plugin)


def wait(daemon: Daemon, turns: int = 5) -> None:
    for _ in range(turns):
        daemon.machine.now_ms += 60_000
        daemon.turn(*WakeUpReason)


def test_a_refused_pod_whose_retry_is_postponed_stays_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin()
    daemon = started(tmp_path, node(two_nodes()), RETRY_FOR_ROOM, Plugins(pool(plugin, "a")))
    first, second = (pod(name, app(cpu="1", devices={GPU: 1})) for name in ("first", "second"))
    with watched(monkeypatch, daemon.machine, daemon.steps):
        daemon.files.pods = (first,)
        daemon.rest()
        daemon.files.pods = (first, second)
        daemon.rest()
        assert entry(daemon, "second").refusal is not None
        plugin.failure = DevicePluginPostponedError("slow")
        daemon.files.pods = (second,)
        wait(daemon)
        assert entry(daemon, "second").refusal is not None
        plugin.failure = None
        wait(daemon)
        assert entry(daemon, "second").is_active


def test_a_request_to_decide_again_waits_for_the_device_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin(DevicePluginFailedError("no"))
    daemon = started(tmp_path, node(two_nodes()), RETRY_NOTHING, Plugins(pool(plugin, "a")))
    with watched(monkeypatch, daemon.machine, daemon.steps):
        daemon.files.pods = (pod("p", app(cpu="1", devices={GPU: 1})),)
        daemon.rest()
        before = entry(daemon, "p").refusal
        assert before is not None
        request = TurnRequest(retried=frozenset({"uid-p"}))
        daemon.agent.requests.put(request)
        plugin.failure = DevicePluginPostponedError("slow")
        daemon.rest()
        assert not request.answer.done()
        assert entry(daemon, "p").refusal == before, "nothing is decided"
        (shown,) = daemon.agent.view.state.entries
        assert shown.is_undecided
        assert shown.refusal == Waiting(Reason.DEVICE_PLUGINS_SLOW, "slow", before.at_ms)
        plugin.failure = None
        daemon.rest()
        assert request.answer.result().state.entries[0].is_active


@pytest.mark.parametrize("retry", [RETRY_NOTHING, RETRY_FOR_ROOM])
@pytest.mark.parametrize("is_restarted", [True, False], ids=["plugin restarts", "another device becomes healthy"])
def test_a_refused_pod_is_decided_again_with_each_new_report_of_its_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry: str, *, is_restarted: bool
) -> None:
    plugin = Plugin()
    before = (
        pool(Plugin(DevicePluginFailedError("gone")), "a", "b") if is_restarted else pool(plugin, "a", others=("b",))
    )
    plugins = Plugins(before)
    daemon = started(tmp_path, node(two_nodes()), retry, plugins)
    with watched(monkeypatch, daemon.machine, daemon.steps):
        daemon.files.pods = (pod("both", app(cpu="1", devices={GPU: 2})),)
        daemon.rest()
        assert entry(daemon, "both").refusal is not None
        plugins.now = (pool(plugin, "a", "b"),)
        wait(daemon)
        assert entry(daemon, "both").is_active


@pytest.mark.parametrize("retry", [RETRY_NOTHING, RETRY_FOR_ROOM])
def test_a_turn_at_rest_scans_no_devices_for_a_refused_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry: str
) -> None:
    daemon = started(tmp_path, node(SMALL), retry)
    first, second = pod("first", app(cpu="6")), pod("second", app(cpu="4", near=("eth0",)))
    with watched(monkeypatch, daemon.machine, daemon.steps):
        daemon.files.pods = (first,)
        daemon.rest()
        daemon.files.pods = (first, second)
        daemon.rest()
        assert entry(daemon, "second").refusal is not None
        looks = daemon.hardware.looks
        for _ in range(5):
            daemon.turn(WakeUpReason.CGROUPS)
        assert daemon.hardware.looks == looks


@pytest.mark.parametrize("retry", [RETRY_NOTHING, RETRY_FOR_ROOM])
def test_a_lost_pod_that_runs_keeps_its_cpus_before_a_refused_pod_is_decided_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retry: str
) -> None:
    lost, ends, waits = pod("lost", app(cpu="3")), pod("ends", app(cpu="2")), pod("waits", app(cpu="6"))
    daemon = started(tmp_path, node(SMALL), retry)
    machine = daemon.machine
    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (lost,)
        daemon.rest()
        own = own_set_of(daemon.agent.state.promises, lost.uid, "app")
        for name in (STATE_FILE, CPU_CHECKPOINT, MEMORY_CHECKPOINT):
            (tmp_path / name).unlink()
        daemon.files.pods = (ends,)
        daemon.start()
        daemon.rest()
        daemon.files.pods = (ends, waits)
        daemon.rest()
        assert entry(daemon, "waits").refusal is not None
        daemon.files.pods = (waits,)
        while any(group.processes for path, group in machine.groups.items() if ends.uid in path):
            assert daemon.agent.state.entry(lost.uid) is None
            daemon.turn(*WakeUpReason)
            machine.now_ms += 100
        daemon.files.pods = (lost, waits)
        daemon.rest()
        assert own_set_of(daemon.agent.state.promises, lost.uid, "app") == own
        assert entry(daemon, "waits").refusal is not None
