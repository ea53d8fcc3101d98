"""The agent looks at devices in turns that may decide on a pod that asks to be near some, and in no others."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import Reason
from nodeagent.core.model.state import Origin
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.turn.pod_sources import Manifest, PodSource
from nodeagent.daemon.turn.machine import Machine as Hardware
from nodeagent.daemon.turn.requests import TurnRequest
from tests.daemon.test_recovery import two_nodes
from tests.support.daemon_model import Daemon, at_rest
from tests.support.machine_tree import DEVICES, Machine as Tree, put_device
from tests.support.pods import app, manifests, pod
from tests.support.world import node

NODE = two_nodes()


def cards(**nodes: int) -> PlacedDevices:
    found = (
        Device(f"0000:0{number}:00.0", DeviceKind.NETWORK, 0, names=(name,), numa_node=where)
        for number, (name, where) in enumerate(nodes.items())
    )
    return PlacedDevices.of(tuple(found), NODE)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    with at_rest(
        monkeypatch, tmp_path, node(NODE, topology_manager_policy="restricted"), (pod("plain", app("app", "1")),)
    ) as daemon:
        assert daemon.hardware.looks == 0
        daemon.hardware.placed = cards(eth0=1)
        yield daemon


def near(name: str, *names: str) -> Pod:
    return pod(name, app("app", "1", near=names))


def where(daemon: Daemon, of: str) -> str:
    entry = next(e for e in daemon.agent.state.entries if e.pod.name == of)
    if entry.refusal is not None:
        return str(entry.refusal.reason)
    own = own_set_of(daemon.agent.state.promises, entry.pod.uid, "app")
    assert own is not None
    return str(NODE.numa_of(own))


def test_they_are_looked_at_when_such_a_pod_comes_and_never_again(daemon: Daemon) -> None:
    daemon.files.pods = (*daemon.files.pods, near("p", "eth0"))
    daemon.rest()
    assert (where(daemon, "p"), daemon.hardware.looks) == ("1", 1)
    daemon.hardware.placed = PlacedDevices()
    daemon.rest()
    daemon.files.pods = (*daemon.files.pods, pod("later", app("app", "1")))
    daemon.rest()
    assert (where(daemon, "p"), daemon.hardware.looks) == ("1", 1)


def test_a_refused_pod_waits_for_its_device_until_it_is_retried(daemon: Daemon) -> None:
    asking = near("p", "eth1")
    daemon.files.pods = (*daemon.files.pods, asking)
    daemon.rest()
    assert (where(daemon, "p"), daemon.hardware.looks) == (Reason.DEVICE, 1)
    daemon.hardware.placed = cards(eth0=1, eth1=0)
    daemon.rest()
    assert (where(daemon, "p"), daemon.hardware.looks) == (Reason.DEVICE, 1)
    daemon.agent.requests.put(TurnRequest(retried=frozenset({asking.uid})))
    daemon.rest()
    assert (where(daemon, "p"), daemon.hardware.looks) == ("0", 2)


def test_a_changed_manifest_is_tried_with_devices_as_they_are(daemon: Daemon) -> None:
    daemon.files.pods = (near("p", "eth0"),)
    daemon.rest()
    daemon.hardware.placed = cards(eth0=0)
    daemon.files.pods = (replace(near("p", "eth0"), uid="changed", termination_grace_seconds=1),)
    daemon.rest()
    assert (where(daemon, "p"), daemon.agent.state.entries[0].pod.uid) == ("0", "changed")


def test_a_change_that_was_refused_is_not_looked_at_for_in_every_turn(daemon: Daemon) -> None:
    daemon.files.pods = (near("p", "eth0"),)
    daemon.rest()
    changed = replace(near("p", "eth7"), uid="changed")
    daemon.files.pods = (changed,)
    daemon.rest()
    (entry,) = daemon.agent.state.entries
    assert entry.refused_change is not None
    looks = daemon.hardware.looks
    daemon.rest()
    daemon.turn()
    assert daemon.hardware.looks == looks
    daemon.hardware.placed = cards(eth0=1, eth7=0)
    daemon.agent.requests.put(TurnRequest(retried=frozenset({entry.pod.uid})))
    daemon.rest()
    assert (where(daemon, "p"), daemon.agent.state.entries[0].pod.uid) == ("0", "changed")


def test_a_manifest_that_does_not_count_asks_for_nothing(daemon: Daemon) -> None:
    one = near("p", "eth0")
    (first,) = manifests(one)
    daemon.files.look_again = PodSource((first, Manifest(near("p", "eth7"), Origin("z.yaml"))))
    daemon.rest()
    looks = daemon.hardware.looks
    daemon.rest()
    daemon.turn()
    assert (where(daemon, "p"), daemon.hardware.looks) == ("1", looks)


def test_a_pod_that_comes_back_while_it_ends_is_near_its_device(daemon: Daemon) -> None:
    asking = near("p", "eth0")
    daemon.files.pods = (asking,)
    daemon.rest()
    daemon.files.pods = ()
    daemon.turn()
    (entry,) = daemon.agent.state.entries
    assert entry.deleting_since_ms is not None
    daemon.files.pods = (asking,)
    daemon.rest()
    assert where(daemon, "p") == "1"


def test_who_runs_keeps_its_cpus_over_a_restart_without_the_device(daemon: Daemon) -> None:
    daemon.files.pods = (near("p", "eth0"), near("q", "eth1"))
    daemon.rest()
    promises = daemon.agent.state.promises
    daemon.start()
    daemon.rest()
    assert daemon.agent.state.promises == promises
    assert (where(daemon, "p"), where(daemon, "q")) == ("1", Reason.DEVICE)
    assert daemon.hardware.looks == 0


def test_they_are_those_below_the_machines_root(tmp_path: Path) -> None:
    root = Tree(cores=("0-1", "2-3"), packages=("0-1", "2-3"), nodes=((0, "0-1"), (1, "2-3"))).grow(tmp_path / "root")
    put_device(root, "0000:3b:00.0", **{"class": "0x020000"}, numa_node="1", net__eth0__="")
    hardware = Hardware(str(root))
    found = hardware.devices(hardware.look(NODE))
    assert [(one.names, place) for one, place in found.find_named("eth0")] == [(("eth0",), 1)]
    (root / DEVICES / "0000:3b:00.0" / "numa_node").write_text("many\n")
    broken = hardware.devices(NODE)
    assert broken.placed == ()
    assert "numa_node" in broken.problem
