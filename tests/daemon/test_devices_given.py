"""The agent gives devices by number: looks at them when somebody asks and at each rescan, tells the container, and remembers."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.cgroup import UnitSettings
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.podmap import PodMap
from nodeagent.core.model.promises import NOTHING, Promises
from nodeagent.core.resources.devices.holdings import DeviceHoldings, pods_with_devices
from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.start.startup import StartError
from nodeagent.daemon.start.strict_recovery import load_state
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.formats.checkpoint.device_checkpoint import encode_devices
from nodeagent.formats.node_view import ViewReader, view_document
from nodeagent.formats.syntax.json_values import JsonValue
from tests.daemon.test_placements import files
from tests.daemon.test_recovery import two_nodes
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine, Unit
from tests.support.pods import app, init, manifests, pod, unit
from tests.support.world import node

NODE = two_nodes()
NIC = "example.com/nic"
GIVES = (DeviceSelection(NIC, (DeviceSelector(kind=DeviceKind.NETWORK),)),)


def cards(**nodes: int) -> PlacedDevices:
    found = (
        Device(f"0000:0{number}:00.0", DeviceKind.NETWORK, 0, names=(name,), numa_node=where)
        for number, (name, where) in enumerate(nodes.items())
    )
    return PlacedDevices.of(tuple(found), NODE)


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    machine = Machine(node(NODE, topology_manager_policy="restricted", devices=GIVES))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        daemon.hardware.placed = cards(eth0=1, eth1=0)
        daemon.rest()
        yield daemon


def asking(name: str, count: int = 1) -> Pod:
    return pod(name, app(cpu="1", devices={NIC: count}))


def held(daemon: Daemon, name: str) -> list[str]:
    entry = next(e for e in daemon.agent.state.entries if e.pod.name == name)
    if entry.refusal is not None:
        return [entry.refusal.reason, entry.refusal.message]
    return [one.id for one in daemon.agent.state.promises.of_pod(entry.pod.uid).of(DeviceHoldings).devices_of("app")]


def test_it_is_given_told_kept_over_a_restart_and_given_back(daemon: Daemon) -> None:
    daemon.files.pods = (asking("a"), asking("b"))
    daemon.rest()
    given = {name: held(daemon, name) for name in "ab"}
    assert sorted(one for own in given.values() for one in own) == ["0000:00:00.0", "0000:01:00.0"]
    (told,) = (text for name, text in files(daemon).items() if name.startswith(f"{asking('a').uid}/"))
    (address,) = given["a"]
    assert f"NODEAGENT_DEVICES={address}\n" in told
    assert f"NODEAGENT_DEVICES_EXAMPLE_COM_NIC={address}\n" in told
    (request,) = (each for each in daemon.requests if each.identifier == "a/app")
    assert dict(request.env)["NODEAGENT_DEVICES"] == address
    there = daemon.hardware.placed
    daemon.start()
    daemon.hardware.placed = there
    daemon.rest()
    assert {name: held(daemon, name) for name in "ab"} == given
    daemon.files.pods = (asking("b"),)
    daemon.rest()
    daemon.files.pods = (asking("b"), asking("c"))
    daemon.rest()
    assert held(daemon, "c") == given["a"]


def test_strict_recovery_takes_over_who_has_which_device(daemon: Daemon) -> None:
    daemon.files.pods = (asking("a"), asking("b"))
    daemon.rest()
    given = {name: held(daemon, name) for name in "ab"}
    (daemon.directory / "nodeagent_state").unlink()
    state = load_state(daemon.agent.node, manifests(asking("a")), 0)
    assert [one.id for one in state.promises.of_pod("uid-a").of(DeviceHoldings).devices_of("app")] == given["a"]
    (lost,) = state.promises.unrecovered
    assert (lost.uid, [one.id for one in lost.held.of(DeviceHoldings).devices_of("app")]) == ("uid-b", given["b"])
    assert violations(daemon.agent.node.managers, state) == ()
    checkpoint = daemon.directory / "kubelet_internal_checkpoint"
    checkpoint.write_text(checkpoint.read_text().replace("uid-b", "uid-c"))
    with pytest.raises(StartError, match="checkpoint is corrupted"):
        load_state(daemon.agent.node, manifests(asking("a")), 0)


def test_what_a_pod_has_that_nobody_knows_for_now_is_no_other_ones(daemon: Daemon) -> None:
    """The state is lost, and the manifest comes only when the agent has started: as that of a job, or one that could not be read."""
    daemon.files.pods = (asking("a"),)
    daemon.rest()
    given, there = held(daemon, "a"), daemon.hardware.placed
    daemon.files.pods = (asking("b", 2), asking("c"))
    for loses in (True, False, True):
        for path in daemon.directory.iterdir() if loses else ():
            if path.is_file() and path.name != "kubelet_internal_checkpoint":
                path.unlink()
        daemon.start()
        daemon.hardware.placed = there
        daemon.rest()
        assert held(daemon, "b")[0] in {"TopologyAffinityError", f"OutOf{NIC}"}
        (other,) = held(daemon, "c")
        assert [other] != given
        said = f"pod uid-a has {given[0]}, according to records, "
        assert [one for one in daemon.agent.view.problems if one.startswith(said)]
    daemon.files.pods = (asking("a"), asking("c"))
    daemon.rest()
    assert (held(daemon, "a"), held(daemon, "c")) == (given, [other])
    assert daemon.agent.view.problems == ()


def test_a_file_that_gives_one_device_to_two_containers_counts_for_the_first(daemon: Daemon) -> None:
    daemon.files.pods = (pod("a", app("one", cpu="1", devices={NIC: 1}), app("two", cpu="1")),)
    daemon.rest()
    (uid,) = (entry.pod.uid for entry in daemon.agent.state.entries)
    before = daemon.agent.state.promises.of_pod(uid).of(DeviceHoldings).devices
    ((_, own),) = before
    for path in daemon.directory.iterdir():
        if path.is_file():
            path.unlink()
    twice = replace(
        Promises(), pods=PodMap().put(uid, NOTHING.having(DeviceHoldings(devices=(("one", own), ("two", own)))))
    )
    (daemon.directory / "kubelet_internal_checkpoint").write_text(encode_devices(twice))
    daemon.start()
    daemon.rest()
    assert [
        (name, [one.id for one in each])
        for name, each in daemon.agent.state.promises.of_pod(uid).of(DeviceHoldings).devices
    ] == [("one", [own[0].id])]


def test_what_the_node_has_not_is_refused_until_it_has_it(daemon: Daemon) -> None:
    daemon.files.pods = (asking("a", 3),)
    daemon.rest()
    assert held(daemon, "a") == [
        f"OutOf{NIC}",
        f"Node didn't have enough resource: {NIC}, requested: 3, used: 0, capacity: 2",
    ]
    daemon.hardware.placed = cards(eth0=0, eth1=0, eth2=0)
    daemon.agent.requests.put(TurnRequest(retried=frozenset({asking("a", 3).uid})))
    daemon.rest()
    assert len(held(daemon, "a")) == 3


def test_a_card_that_is_gone_is_a_problem_while_it_is(daemon: Daemon) -> None:
    daemon.files.pods = (asking("a"),)
    daemon.rest()
    (address,) = held(daemon, "a")
    everything = daemon.hardware.placed
    daemon.hardware.placed = PlacedDevices()
    daemon.turn(WakeUpReason.TIMER)
    (problem,) = daemon.agent.view.problems
    assert f"{address} of its {NIC} is gone or unhealthy" in problem
    assert held(daemon, "a") == [address]
    daemon.hardware.placed = everything
    daemon.turn(WakeUpReason.TIMER)
    assert daemon.agent.view.problems == ()


def test_readers_see_what_there_is(daemon: Daemon) -> None:
    view = ViewReader()(JsonValue(json.loads(json.dumps(view_document(daemon.agent.view)))))
    assert view.pools == daemon.agent.view.pools
    assert [(pool.resource, [one.names for one in pool.devices]) for pool in view.pools] == [
        (NIC, [("eth0",), ("eth1",)])
    ]


@pytest.mark.parametrize("seed", [*range(20), 121, 183])
def test_whoever_runs_keeps_its_devices_whatever_is_lost_and_can_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Pods of ours and pinned units come and go, their manifests can't be read for a while, and the agent starts without its state."""
    machine = Machine(node(NODE, devices=GIVES))
    pods = [asking("a"), asking("b", 2), pod("i", init("init", cpu="1", devices={NIC: 1}), app(devices={NIC: 1}))]
    for name in ("c", "d"):
        machine.units[f"{name}.service"] = Unit(UnitSettings())
        pods.append(pod(name, unit(f"{name}.service", "1", devices={NIC: 1})))
    chance, there, hidden = random.Random(seed), set[str](), set[str]()
    daemon, before, done = Daemon(machine, tmp_path, steps=Steps()), dict[str, tuple[object, set[str]]](), list[str]()
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        for _ in range(20):
            done.append(chance.choice(["add", "add", "remove", "hide", "show", "lose", "restart", "end"]))
            one = chance.choice(pods).name
            match done[-1]:
                case "add":
                    there.add(one)
                case "remove":
                    there -= {one} - hidden
                case "hide":
                    hidden |= {one} & there
                case "show":
                    hidden.discard(one)
                case "lose":
                    hidden |= {name for name in sorted(there) if chance.random() < 0.5}
                case "end":
                    for path, group in machine.groups.items():
                        if f"poduid-{one}/" in path:
                            group.processes.clear()
            readable = manifests(*(each for each in pods if each.name in there - hidden))
            daemon.files.look_again = PodSource(readable, unreadable=frozenset(f"{name}.yaml" for name in hidden))
            if done[-1] in {"lose", "restart"}:
                for file in daemon.directory.iterdir() if done[-1] == "lose" else ():
                    if file.is_file() and file.name != "kubelet_internal_checkpoint":
                        file.unlink()
                daemon.start()
            daemon.hardware.placed = cards(eth0=0, eth1=1, eth2=0, eth3=1)
            machine.now_ms += 60_000
            daemon.rest()
            held = {uid: {one.id for _, own in each.devices for one in own} for uid, each in devices_of(daemon)}
            assert sum(map(len, held.values())) == len(set[str]().union(*held.values())), done
            runs: dict[str, object] = {
                path.split("/")[-2].removeprefix("pod"): (path, tuple(group.processes))
                for path, group in machine.groups.items()
                if "/" in path and group.processes
            }
            pinned = (name for name, each in machine.units.items() if each.settings != UnitSettings())
            runs |= {f"uid-{name.partition('.')[0]}": "pinned" for name in pinned}
            for uid, process in runs.items():
                assert uid not in before or before[uid][0] != process or before[uid][1] <= held.get(uid, set()), done
            before = {uid: (process, held.get(uid, set())) for uid, process in runs.items()}
            lost = {one.uid for one in daemon.agent.state.promises.unrecovered}
            assert hidden or lost <= runs.keys(), f"{done}: nobody has it"


def devices_of(daemon: Daemon) -> tuple[tuple[str, DeviceHoldings], ...]:
    return tuple(pods_with_devices(daemon.agent.state.promises))
