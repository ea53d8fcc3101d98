"""An agent whose device plugin registers after a pod came that asks for its devices: the pod waits for it, and is told what it answers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.daemon.plugins.device_plugins import DevicePlugins
from nodeagent.daemon.reports.publisher import Publisher
from nodeagent.daemon.turn.wakeups import WakeUpReason
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
    (tmp_path / "agent").mkdir()
    asking = pod("p", app(cpu="1", devices={GPU: 1}))
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        daemon.files.pods = (asking,)
        daemon.rest()
        agent = daemon.agent
        assert agent.state.entries[0].refusal is not None
        plugins = DevicePlugins(tmp_path / "kubelet.sock", lambda: agent.wakeups.wake(WakeUpReason.DEVICES), agent.log)
        monkeypatch.setattr(agent, "_plugins", plugins)
        monkeypatch.setattr(agent.runner, "_prepare", plugins.prepare)
        config: Any = SimpleNamespace(
            runtime_directory=str(tmp_path),
            metrics_bind_address="",
            pod_resources_socket="",
            device_plugin_socket=f"{tmp_path}/kubelet.sock",
        )
        with Publisher(agent, config, agent.log, None, plugins):
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
