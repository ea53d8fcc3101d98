"""kubelet's PodResources API, asked by grpcio's client with stubs of its protocol, of an agent and of states of every kind."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from h2.connection import H2Connection
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers
from nodeagent.core.metrics.deltas import Series
from nodeagent.core.model.claims import ContainerClaim
from nodeagent.core.model.device_pools import DevicePool
from nodeagent.core.model.device_selection import DeviceSelection, DeviceSelector
from nodeagent.core.model.devices import Device, DeviceKind, PlacedDevices
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.state import NodeState, Phase
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import CpuHoldings
from nodeagent.core.resources.devices.resource import DeviceResource
from nodeagent.core.resources.memory.holdings import MemoryHoldings
from nodeagent.core.turn.pod_sources import new_entry
from nodeagent.daemon.reports.pod_resources import PodResources
from nodeagent.daemon.reports.publisher import Publisher
from nodeagent.daemon.turn.machine import node_name
from nodeagent.edge.processes.user_database import find_group_id
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.serving import ServingThread
from nodeagent.formats.syntax.bind_address import UnixAddress
from nodeagent.formats.wire.grpc_messages import CallError, Status, add_frame
from tests.support.builders import GIB, PLRM, admitted, machine, managers
from tests.support.claims import ETH0, request, template
from tests.support.daemon_model import Daemon, Steps, watched
from tests.support.node_model import Machine
from tests.support.pods import app, exclusive, init, manifests, mixed, pod, shared, sidecar
from tests.support.protos import generated
from tests.support.world import SMALL, START_MS, node

ROOT = Path(__file__).parents[2]
MESSAGES, STUBS = generated("pod_resources")
SOCKET = "pod-resources.sock"
NIC = "example.com/nic"
ENDPOINT = "kubelet_pod_resources_endpoint"
NUMA = machine(nodes=2, cores=8, hugepages={"hugepages-2Mi": GIB})
LIST, GET, ALLOCATABLE = (f"/v1.PodResourcesLister/{name}" for name in ("List", "Get", "GetAllocatableResources"))

Memory = list[tuple[str, int, list[int]]]
"""(type, bytes, NUMA nodes)"""


class Kubelet:
    """The API as a client of kubelet's sees it."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = STUBS.PodResourcesListerStub(channel)

    def pods(self) -> Any:
        return self._stub.List(MESSAGES.ListPodResourcesRequest(), timeout=60).pod_resources

    def pod(self, name: str, namespace: str = "default") -> Any:
        asked = MESSAGES.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace)
        return self._stub.Get(asked, timeout=60).pod_resources

    def allocatable(self) -> Any:
        return self._stub.GetAllocatableResources(MESSAGES.AllocatableResourcesRequest(), timeout=60)


@contextmanager
def client(path: str) -> Iterator[Kubelet]:
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.max_receive_message_length", 16 << 20)]) as channel:
        yield Kubelet(channel)


@contextmanager
def served(directory: Path, of: Managers, state: NodeState, pools: tuple[DevicePool, ...] = ()) -> Iterator[Kubelet]:
    """A node's API on a socket of its own, without limit: its clock hurries."""
    failures: list[object] = []
    view: Any = SimpleNamespace(node=SimpleNamespace(rules=of), state=state, pools=pools)
    resources = PodResources(lambda: view, {}, clock=map(float, count()).__next__)
    thread = ServingThread(lambda doing, err: failures.append((doing, err)))
    with ExitStack() as undo:
        undo.callback(thread.stop)
        path = str(directory / SOCKET)
        undo.callback(thread.serve(listen(UnixAddress(path)), resources.dialogue(failures.append)).close)
        yield undo.enter_context(client(path))
    assert failures == []


def decided(of: Managers, *pods: Pod) -> NodeState:
    entries = (new_entry(manifest, START_MS, pod_level_resources=True) for manifest in manifests(*pods))
    return NodeState(admitted(of, *pods), tuple(entries))


def blocks(answered: Any) -> Memory:
    return [(one.memory_type, one.size, [number.ID for number in one.topology.nodes]) for one in answered]


def containers(answered: Any) -> dict[str, tuple[list[int], Memory]]:
    return {one.name: (list(one.cpu_ids), blocks(one.memory)) for one in answered.containers}


def promised(promises: Promises, one: Pod) -> dict[str, tuple[list[int], Memory]]:
    held = promises.of_pod(one.uid)
    return {
        container.name: (
            list(held.of(CpuHoldings).own_set(container.name) or ()),
            [
                (block.resource, block.size_bytes, list(block.nodes))
                for block in held.of(MemoryHoldings).blocks(container.name) or ()
            ],
        )
        for container in one.containers
    }


def test_what_is_listed_is_what_was_promised(tmp_path: Path) -> None:
    of = managers(NUMA, reserved="0", reserved_memory={0: "1Gi"}, topology_manager_policy="restricted")
    pods = (
        pod("pinned", app("one", "2", "1Gi"), app("two", "1", "2Gi", hugepages_2Mi="64Mi")),
        replace(pod("elsewhere", app("a", "3", "1Gi")), namespace="kube-system"),
        pod("shared", app("b", "500m", "1Gi")),
        pod("best-effort", shared("c")),
        pod("mixed", mixed("d", "2500m", own=2, memory="1Gi")),
    )
    state = decided(of, *pods)
    with served(tmp_path, of, state) as kubelet:
        answer = kubelet.pods()
        assert [(one.namespace, one.name) for one in answer] == [(one.namespace, one.name) for one in pods]
        for one, got in zip(pods, answer, strict=True):
            assert containers(got) == promised(state.promises, one)
            assert (list(got.cpu_ids), blocks(got.memory)) == ([], [])
            assert kubelet.pod(one.name, one.namespace) == got
            assert not any(container.devices or container.dynamic_resources for container in got.containers)
    by_name = {one.name: containers(one) for one in answer}
    assert len(by_name["pinned"]["one"][0]) == 2
    assert [kind for kind, _, _ in by_name["pinned"]["two"][1]] == ["hugepages-2Mi", "memory"]
    assert by_name["shared"]["b"] == ([], [("memory", GIB, [0])])
    assert by_name["best-effort"]["c"] == ([], [])
    assert len(by_name["mixed"]["d"][0]) == 2


def test_devices_are_listed_one_by_one_with_their_numa_nodes(tmp_path: Path) -> None:
    kinds = (DeviceSelection(NIC, (DeviceSelector(kind=DeviceKind.NETWORK),)),)
    cards = [Device(f"0000:0{n}:00.0", DeviceKind.NETWORK, 0, numa_node=node) for n, node in enumerate((0, 0, 1, None))]
    of = managers(NUMA, reserved="0", topology_manager_policy="best-effort", devices=kinds)
    of = of.knowing(PlacedDevices.of(tuple(cards), NUMA))
    owned = of.providers.find(DeviceResource)
    assert owned is not None
    state = decided(of, pod("owner", app(cpu="1", devices={NIC: 2}), app("none")))
    with served(tmp_path, of, state, owned.manager.pools) as kubelet:
        ((app_, none),) = [one.containers for one in kubelet.pods()]
        found = [(d.resource_name, list(d.device_ids), [n.ID for n in d.topology.nodes]) for d in app_.devices]
        assert found == [(NIC, ["0000:00:00.0"], [0]), (NIC, ["0000:01:00.0"], [0])]
        assert not none.devices
        every = kubelet.allocatable().devices
        assert [list(one.device_ids) for one in every] == [[card.address] for card in cards]
        assert [one.HasField("topology") for one in every] == [True, True, True, False]


def test_claims_are_listed_with_what_each_container_has_of_them(tmp_path: Path) -> None:
    of = managers(NUMA, reserved="0", topology_manager_policy="best-effort")
    of = of.knowing(PlacedDevices.of((ETH0,), NUMA))
    own = template(request("cpus", count=2), request("nic", "nodeagent.io"))
    one = app("one", "2", claims=(ContainerClaim("own"),))
    two = app("two", "100m", claims=(ContainerClaim("own", "nic"),))
    state = decided(of, pod("owner", one, two, claims=(own,)))
    with served(tmp_path, of, state) as kubelet:
        (listed,) = kubelet.pods()
        found = {
            each.name: [
                (
                    claim.claim_namespace,
                    claim.claim_name,
                    [(r.driver_name, r.device_name) for r in claim.claim_resources],
                )
                for claim in each.dynamic_resources
            ]
            for each in listed.containers
        }
        cpus = [("dra.cpu", f"cpudev{cpu:03}") for cpu in listed.containers[0].cpu_ids]
        card = ("nodeagent.io", "pci-0000-3b-00-0")
        assert found == {
            "one": [("default", "owner-own", [*cpus, card])],
            "two": [("default", "owner-own", [card])],
        }
        assert len(cpus) == 2
        assert not any(each.devices for each in listed.containers)
        pools = {r.pool_name for each in listed.containers for d in each.dynamic_resources for r in d.claim_resources}
        assert pools == {node_name()}


def test_init_containers_that_end_are_not_listed_and_sidecars_are(tmp_path: Path) -> None:
    of = managers(reserved="0")
    state = decided(of, pod("p", init("first", "2"), sidecar("side", "1"), init("second", "1"), app("app", "2")))
    with served(tmp_path, of, state) as kubelet:
        (answer,) = kubelet.pods()
    assert [one.name for one in answer.containers] == ["side", "app"]
    assert [len(one.cpu_ids) for one in answer.containers] == [1, 2]


def test_a_pod_that_has_its_own_resources_has_what_its_containers_share(tmp_path: Path) -> None:
    """kubelet 1.37: what the pod holds is the pod's, and what a container holds alone is the container's, too."""
    of = managers(
        NUMA, reserved="0", reserved_memory={0: "1Gi"}, gates=PLRM, topology_manager_policy="restricted",
        topology_manager_scope="pod",
    )  # fmt: skip
    one = pod("p", app("alone", "2", "1Gi"), shared("crowd"), shared("more"), resources=exclusive("4", "4Gi"))
    state = decided(of, one)
    held = state.promises.of_pod(one.uid)
    with served(tmp_path, of, state) as kubelet:
        (answer,) = kubelet.pods()
        assert kubelet.pod("p") == answer
    assert list(answer.cpu_ids) == list(held.of(CpuHoldings).pod_cpus or ())
    assert len(answer.cpu_ids) == 4
    assert blocks(answer.memory) == [("memory", 4 * GIB, [0])]
    own = held.of(CpuHoldings).own_set("alone")
    assert own is not None
    assert held.of(CpuHoldings).own_set("crowd") is not None, "it is pinned to what the pod shares"
    assert containers(answer) == {"alone": (list(own), [("memory", GIB, [0])]), "crowd": ([], []), "more": ([], [])}


def test_pods_that_hold_nothing_any_more_are_found_but_not_listed(tmp_path: Path) -> None:
    of = managers(reserved="0")
    running, over, refused = pod("running", app("c", "1")), pod("over", app("c")), pod("refused", app("c"))
    first, second, third = decided(of, running, over, refused).entries
    ended = replace(second, outcome=Phase.SUCCEEDED)
    unwanted = replace(third, refusal=Waiting("OutOfcpu", "no", START_MS), containers=())
    ending = replace(first, deleting_since_ms=START_MS)
    with served(tmp_path, of, NodeState(admitted(of, running), (ending, ended, unwanted))) as kubelet:
        assert [one.name for one in kubelet.pods()] == ["running"]
        for name in ("over", "refused"):
            assert containers(kubelet.pod(name)) == {"c": ([], [])}


@pytest.mark.parametrize(("name", "namespace"), [("p", "other"), ("q", "default"), ("", ""), ("ü%\n", "a b")])
def test_a_pod_that_is_not_there_is_an_error_with_kubelets_text(tmp_path: Path, name: str, namespace: str) -> None:
    of = managers(reserved="0")
    with served(tmp_path, of, decided(of, pod("p"))) as kubelet, pytest.raises(grpc.RpcError) as caught:
        kubelet.pod(name, namespace)
    error: Any = caught.value
    assert error.code() == grpc.StatusCode.UNKNOWN
    assert error.details() == f"pod {name} in namespace {namespace} not found"


def test_what_can_be_allocated_is_what_is_not_reserved(tmp_path: Path) -> None:
    of = managers(NUMA, reserved="0,16", reserved_memory={0: "1Gi"}, topology_manager_policy="restricted")
    state = decided(of, pod("p", app("c", "4", "2Gi")))
    with served(tmp_path, of, state) as kubelet:
        answer = kubelet.allocatable()
    assert list(answer.cpu_ids) == [*range(1, 16), *range(17, 32)]
    assert blocks(answer.memory) == [
        ("hugepages-2Mi", GIB, [0]),
        ("memory", 6 * GIB, [0]),
        ("hugepages-2Mi", GIB, [1]),
        ("memory", 7 * GIB, [1]),
    ]
    assert not answer.devices


def test_without_managers_nothing_can_be_allocated(tmp_path: Path) -> None:
    of = node(SMALL, reserved="", cpu_manager_policy="none").managers
    with served(tmp_path, of, decided(of, pod("p", app("c", "1")))) as kubelet:
        answer = kubelet.allocatable()
        assert (list(answer.cpu_ids), list(answer.memory)) == ([], [])
        assert containers(kubelet.pod("p")) == {"c": ([], [])}


def test_many_ask_at_once_for_more_than_64_kib(tmp_path: Path) -> None:
    of = managers(machine(nodes=2, cores=600), reserved="0", reserved_memory={0: "1Gi"})
    pods = [pod(f"pod-{'x' * 200}-{number:04}", app("c", "2", "1Mi")) for number in range(500)]
    state = decided(of, *pods)
    with served(tmp_path, of, state) as kubelet, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: kubelet.pods(), range(24)))
    assert sum(one.ByteSize() for one in answers[0]) > 65_536
    assert {len(answer) for answer in answers} == {500}
    assert all(answer == answers[0] for answer in answers)
    assert [containers(one) for one in answers[0]] == [promised(state.promises, one) for one in pods]


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_no_more_than_100_calls_a_second_are_answered_and_10_at_once() -> None:
    """As kubelet does, and with its text; what is refused isn't counted."""
    of = managers(reserved="0")
    view: Any = SimpleNamespace(node=SimpleNamespace(rules=of), state=decided(of), pools=())
    counts: dict[Series, int] = {}
    clock = Clock()
    methods = PodResources(lambda: view, counts, clock).methods()

    def answered(calls: int) -> int:
        done = 0
        for _ in range(calls):
            try:
                methods[LIST](b"")
                done += 1
            except CallError as err:
                assert (err.status, err.message) == (Status.RESOURCE_EXHAUSTED, "rejected by rate limit")  # noqa: PT017 - among others
        return done

    assert answered(20) == 10
    clock.seconds += 0.03125
    assert answered(20) == 3
    clock.seconds += 3600
    assert answered(20) == 10
    assert counts[Series(f"{ENDPOINT}_requests_list", (("server_api_version", "v1"),))] == 23


@pytest.mark.parametrize("method", [LIST, GET, ALLOCATABLE])
def test_what_is_no_message_is_an_error_and_unknown_fields_are_none(method: str) -> None:
    of = managers(reserved="0")
    view: Any = SimpleNamespace(node=SimpleNamespace(rules=of), state=decided(of, pod("p")), pools=())
    methods = PodResources(lambda: view, {}).methods()
    with pytest.raises(CallError, match="the message ends in the middle of a number") as caught:
        methods[method](b"\xff")
    assert caught.value.status is Status.INVALID_ARGUMENT
    known = MESSAGES.GetPodResourcesRequest(pod_name="p", pod_namespace="default").SerializeToString()
    assert methods[method](known + b"\xf8\x3f\x07")


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """An agent that serves the API, with a pod that runs."""
    of = Machine(node(SMALL))
    daemon = Daemon(of, tmp_path, steps=Steps())
    with watched(monkeypatch, of, daemon.steps):
        daemon.start()
        daemon.files.pods = (pod("p", app(cpu="2"), uid="uid-p"), pod("big", app(cpu="99"), uid="uid-big"))
        daemon.rest()
        config: Any = SimpleNamespace(
            runtime_directory=str(tmp_path), metrics_bind_address="", pod_resources_socket=f"{tmp_path}/{SOCKET}"
        )
        with Publisher(daemon.agent, config, daemon.agent.edges.log):
            yield daemon


def test_the_agent_answers_from_what_it_published(daemon: Daemon) -> None:
    with client(f"{daemon.directory}/{SOCKET}") as kubelet:
        (answer,) = kubelet.pods()
        view = daemon.agent.view
        (entry, _) = view.state.entries
        assert containers(answer) == promised(view.state.promises, entry.pod)
        assert list(kubelet.allocatable().cpu_ids) == list(view.node.topology.online - view.node.reserved)
        assert containers(kubelet.pod("big")) == {"app": ([], [])}
        daemon.files.pods = ()
        daemon.rest()
        daemon.machine.now_ms += 60_000
        daemon.rest()
        assert not daemon.agent.view.state.entries
        assert not kubelet.pods()


def test_the_group_may_ask_and_nobody_else(daemon: Daemon) -> None:
    path = daemon.directory / SOCKET
    group = find_group_id("nodeagent")
    assert stat.S_IMODE(os.stat(path).st_mode) == (0o600 if group is None else 0o660)  # noqa: PTH116 - beside the group


def test_requests_are_counted_under_kubelets_names(daemon: Daemon) -> None:
    with client(f"{daemon.directory}/{SOCKET}") as kubelet:
        kubelet.pods()
        kubelet.pods()
        kubelet.allocatable()
        kubelet.pod("p")
        with pytest.raises(grpc.RpcError):
            kubelet.pod("q")
    text = daemon.agent.metrics.exposition.text().decode()
    for name, value in (
        ("requests_total", 5),
        ("requests_list", 2),
        ("errors_list", 0),
        ("requests_get_allocatable", 1),
        ("errors_get_allocatable", 0),
        ("requests_get", 2),
        ("errors_get", 1),
    ):
        for prefix in (ENDPOINT, ENDPOINT.removeprefix("kubelet_")):
            assert f"# TYPE {prefix}_{name} counter\n" in text
            assert f'\n{prefix}_{name}{{server_api_version="v1"}} {value}.0\n' in text


def test_a_socket_that_cannot_be_opened_is_reported_with_its_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Machine(node(SMALL))
    daemon = Daemon(of, tmp_path, steps=Steps())
    with watched(monkeypatch, of, daemon.steps):
        daemon.start()
        config: Any = SimpleNamespace(
            runtime_directory=str(tmp_path), metrics_bind_address="", pod_resources_socket=f"{tmp_path}/agent.sock"
        )
        with Publisher(daemon.agent, config, daemon.agent.edges.log):
            (line,) = [one for one in daemon.said() if one["event"] == "not_served"]
    assert line["what"] == "pod resources"
    assert "set another podResourcesSocket" in line["hint"]


def test_an_agent_that_does_not_serve_it_loads_nothing_of_it() -> None:
    program = "import json, sys, nodeagent.daemon.service, nodeagent.daemon.reports.publisher\nprint(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert "nodeagent.edge.transport.serving" in loaded
    needless = {"h2", "hpack", "hyperframe", "nodeagent.edge.transport.grpc_server", "nodeagent.formats.wire.protobuf"}
    assert not loaded & needless


MEMORY = """
import sys
from types import SimpleNamespace
import nodeagent.daemon.reports.publisher, nodeagent.daemon.service
from benchmarks.nodes import app, large_node, pod, scanned
from tests.support.world import empty_state

def used_kib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))

of = large_node(memory=True)
state = scanned(of, empty_state(of), [pod(f"p{number:04}", app("c", "1")) for number in range(500)]).state
before = used_kib()
from nodeagent.daemon.reports.pod_resources import PodResources
from nodeagent.edge.transport.grpc_server import GrpcConnection
for _ in range(10):
    served = PodResources(lambda: SimpleNamespace(state=state), {})
    connection = GrpcConnection(served.methods(), print)
    connection.receive(bytes.fromhex(sys.argv[1]))
    answered = sum(map(len, iter(connection.take_output, b"")))
print(used_kib() - before, answered)
"""


def test_500_pods_take_less_than_5_mib_more_memory() -> None:
    client = H2Connection()
    client.initiate_connection()
    pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", LIST)]
    client.send_headers(1, [*pseudo, ("content-type", "application/grpc")])
    client.send_data(1, add_frame(b""), end_stream=True)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, client.data_to_send().hex()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    kib, answered = map(int, done.stdout.split())
    assert answered > 20_000
    assert kib < 5 * 1024
