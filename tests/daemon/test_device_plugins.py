"""Device plugins register, tell their devices, die and come back; pods get what they give, as from kubelet."""

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
import pytest

from nodeagent.core.admission.managers import Admitted, Rejected, admit, initial
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.core.resources.devices.plugins import DevicePluginPostponedError
from nodeagent.daemon.plugins import device_plugins
from nodeagent.daemon.plugins.device_plugins import DevicePlugins
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.serving import ServingThread
from nodeagent.formats.syntax.bind_address import UnixAddress
from nodeagent.formats.wire import device_plugins as wire
from nodeagent.formats.wire.device_plugins import decode_variables
from tests.edge.test_grpc_client import HOSTILE_STATUSES
from tests.support.builders import managers, pod
from tests.support.device_plugin import MESSAGES, PATIENCE_SECONDS, DevicePlugin, RawPlugin
from tests.support.pods import app

GPU = "example.com/gpu"


class Kubelet:
    """The registration as plugins see it, and what they have told."""

    def __init__(self, directory: Path, undo: ExitStack) -> None:
        self._changed = threading.Condition()
        self.warnings: list[tuple[str, str]] = []
        """Event and problem of each."""
        log: Any = SimpleNamespace(info=lambda *_, **__: None, warning=self._warn)
        self.clock: Callable[[], float] = time.monotonic
        """In seconds, for the time that calls take."""
        self.plugins = DevicePlugins(directory / "kubelet.sock", self._wake, log, self._now)
        undo.callback(self.plugins.close)
        thread = ServingThread(lambda *_: None)
        undo.callback(thread.stop)
        failures = io.StringIO()
        dialogue = self.plugins.dialogue(lambda err: print(err, file=failures))
        undo.callback(thread.serve(listen(UnixAddress(str(directory / "kubelet.sock"))), dialogue).close)

    def _warn(self, event: str, *, problem: str, **_fields: str) -> None:
        self.warnings.append((event, problem))

    def _now(self) -> float:
        return self.clock()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def until(self, holds: Callable[[dict[str, list[tuple[str, bool]]]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self.told()), PATIENCE_SECONDS), self.told()

    def told(self) -> dict[str, list[tuple[str, bool]]]:
        return {pool.resource: [(one.id, one.is_healthy) for one in pool.devices] for pool in self.plugins.pools()}


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def kubelet(tmp_path: Path, undo: ExitStack) -> Kubelet:
    return Kubelet(tmp_path, undo)


@pytest.fixture
def plugin(tmp_path: Path, undo: ExitStack) -> DevicePlugin:
    made = DevicePlugin(tmp_path, GPU)
    undo.callback(made.stop)
    return made


@pytest.fixture
def raw(tmp_path: Path, undo: ExitStack) -> RawPlugin:
    made = RawPlugin(tmp_path, GPU)
    undo.callback(made.stop)
    return made


def asking(uid: str, count: int = 1) -> Pod:
    return pod(uid, app(cpu="2", devices={GPU: count}))


def test_what_it_tells_is_given_with_its_nodes_and_its_answer_kept(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.envs = {"GPU_VISIBLE": "b", "NODEAGENT_X": "no", "not a name": "no"}
    plugin.register()
    plugin.tell(("a", True, 0), ("b", True, 1), ("c", False, 1))
    kubelet.until(lambda told: told.get(GPU) == [("a", True), ("b", True), ("c", False)])
    node = managers(topology_manager_policy="restricted").knowing(None, kubelet.plugins.pools())
    promises = initial(node)
    for uid in ("p", "q"):
        decision = admit(node, promises, asking(uid))
        assert isinstance(decision, Admitted), decision.message
        promises = decision.promises
    ids = [[one.id for one in promises.of_pod(uid).of(DeviceHoldings).devices_of("app")] for uid in ("p", "q")]
    assert ids == [["a"], ["b"]]
    assert node.topology.numa_of(own_set_of(promises, "q", "app") or CpuSet()) == NumaSet.of(1)
    answer = promises.of_pod("q").of(DeviceHoldings).answer_of("app", GPU)
    assert answer is not None
    assert decode_variables(answer) == (("GPU_VISIBLE", "b"),)
    assert plugin.asked == [("allocate", ["a"]), ("allocate", ["b"])]
    assert isinstance(admit(node, promises, asking("r")), Rejected), "an unhealthy one is nobody's"
    assert isinstance(admit(node.tried_out(), initial(node), asking("s")), Admitted)
    assert len(plugin.asked) == 2, "a trial asks nobody"


def test_its_preference_counts_among_what_the_affinity_leaves(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.options.get_preferred_allocation_available = True
    plugin.preferred = ["c", "b"]
    plugin.register()
    plugin.tell(("a", True, 0), ("b", True, 0), ("c", True, 0), ("d", True, 1))
    kubelet.until(lambda told: len(told.get(GPU, ())) == 4)
    node = managers(topology_manager_policy="restricted").knowing(None, kubelet.plugins.pools())
    decision = admit(node, initial(node), asking("p", 2))
    assert isinstance(decision, Admitted)
    assert [one.id for one in decision.promises.of_pod("p").of(DeviceHoldings).devices_of("app")] == ["b", "c"]
    assert plugin.asked == [("preferred", ["a", "b", "c"]), ("allocate", ["b", "c"])]


def test_answers_for_a_postponed_pod_are_kept_until_it_is_asked_for_again(
    kubelet: Kubelet, plugin: DevicePlugin
) -> None:
    """A container runtime asks again some turns later, where the agent does in the next turn."""
    passed_seconds = 0.0
    kubelet.clock = lambda: passed_seconds + 4.2 * len(plugin.asked)
    plugin.register()
    plugin.tell(*((f"d{n}", True, None) for n in range(4)))
    kubelet.until(lambda told: len(told.get(GPU, ())) == 4)
    served = kubelet.plugins.pools()[0].plugin
    assert served is not None

    def decide(*, after_seconds: float) -> None:
        nonlocal passed_seconds
        passed_seconds += after_seconds
        kubelet.plugins.begin_turn(lambda: None)
        for n in range(4):
            served.allocate("uid", (f"d{n}",))

    with pytest.raises(DevicePluginPostponedError):
        decide(after_seconds=0)
    kubelet.plugins.begin_turn(lambda: None)
    decide(after_seconds=15)
    assert len(plugin.asked) == 4, "no question is asked again"
    with pytest.raises(DevicePluginPostponedError):
        decide(after_seconds=15)
    assert len(plugin.asked) == 7, "the next decision asks anew"
    with pytest.raises(DevicePluginPostponedError):
        decide(after_seconds=61)
    assert len(plugin.asked) == 10, "the answers were too old"


def test_one_that_refuses_refuses_the_pod_and_stays(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.refuses = "no such luck"
    plugin.register()
    plugin.tell(("a", True, None))
    kubelet.until(lambda told: GPU in told and bool(told[GPU]))
    node = managers().knowing(None, kubelet.plugins.pools())
    decision = admit(node, initial(node), asking("p"))
    assert isinstance(decision, Rejected)
    assert decision.reason == "UnexpectedAdmissionError"
    assert "no such luck" in decision.message
    assert kubelet.told()[GPU] == [("a", True)]


@pytest.mark.parametrize("_again", range(5))
def test_one_that_is_late_has_ended_whoever_notices_first(
    kubelet: Kubelet, plugin: DevicePlugin, monkeypatch: pytest.MonkeyPatch, _again: int
) -> None:
    """The plugin's gRPC is told when the call ends, and may say that it has before our own clock does."""
    monkeypatch.setattr(device_plugins, "CALL_SECONDS", 0.2)
    plugin.register()
    plugin.tell(("a", True, None))
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    plugin.answers.clear()
    node = managers().knowing(None, kubelet.plugins.pools())
    decision = admit(node, initial(node), asking("p"))
    assert isinstance(decision, Rejected)
    assert "it has not answered in time" in decision.message
    assert kubelet.told() == {GPU: [("a", False)]}


def test_one_that_waited_for_somebody_else_refuses_and_stays(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.refuses, plugin.status = "its own server is late", grpc.StatusCode.DEADLINE_EXCEEDED
    plugin.register()
    plugin.tell(("a", True, None))
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    node = managers().knowing(None, kubelet.plugins.pools())
    decision = admit(node, initial(node), asking("p"))
    assert isinstance(decision, Rejected)
    assert "its own server is late" in decision.message
    assert kubelet.told() == {GPU: [("a", True)]}


def test_one_that_dies_has_unhealthy_devices_until_it_registers_again(
    kubelet: Kubelet, plugin: DevicePlugin, tmp_path: Path, undo: ExitStack
) -> None:
    plugin.register()
    plugin.tell(("a", True, 0))
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    assert kubelet.plugins.problems() == ()
    plugin.stop()
    kubelet.until(lambda told: told.get(GPU) == [("a", False)])
    assert GPU in kubelet.plugins.problems()[0]
    again = DevicePlugin(tmp_path, GPU)
    undo.callback(again.stop)
    again.register()
    again.tell(("a", True, 0), ("b", True, 0))
    kubelet.until(lambda told: told.get(GPU) == [("a", True), ("b", True)])
    assert kubelet.plugins.problems() == ()
    again.tell(("b", True, 0))
    kubelet.until(lambda told: told.get(GPU) == [("b", True)])


HOSTILE_TRAILERS = [(("another", "0"),), *((("grpc-status", status),) for status in HOSTILE_STATUSES)]


@pytest.mark.parametrize("trailers", HOSTILE_TRAILERS)
def test_nonsense_for_a_status_of_allocate_refuses_the_pod_and_ends_the_plugin(
    kubelet: Kubelet, raw: RawPlugin, trailers: tuple[tuple[str, str], ...]
) -> None:
    raw.trailers["Allocate"] = trailers
    raw.register()
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    node = managers().knowing(None, kubelet.plugins.pools())
    decision = admit(node, initial(node), asking("p"))
    assert isinstance(decision, Rejected)
    assert f"the device plugin of {GPU}: it does not speak gRPC as it should" in decision.message
    assert kubelet.told() == {GPU: [("a", False)]}
    assert "it does not speak gRPC as it should" in kubelet.plugins.problems()[0]


@pytest.mark.parametrize("trailers", HOSTILE_TRAILERS)
def test_nonsense_for_a_status_of_its_list_ends_the_plugin_until_it_registers_again(
    kubelet: Kubelet, raw: RawPlugin, trailers: tuple[tuple[str, str], ...]
) -> None:
    raw.trailers["ListAndWatch"] = trailers
    raw.register()
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    raw.ends_list.set()
    kubelet.until(lambda told: told.get(GPU) == [("a", False)] and bool(kubelet.warnings))
    ((event, problem),) = kubelet.warnings
    assert event == "device_plugin_gone"
    assert "it does not speak gRPC as it should" in problem
    assert problem in kubelet.plugins.problems()[0]
    raw.ends_list.clear()
    raw.register()
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    assert kubelet.plugins.problems() == ()


def test_whatever_fails_in_following_a_plugin_ends_it_visibly(
    kubelet: Kubelet, plugin: DevicePlugin, tmp_path: Path, undo: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    plugin.tell(("a", True, None))
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])

    def fails(_message: bytes) -> NoReturn:
        raise RecursionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(wire, "decode_devices", fails)
        plugin.tell(("b", True, None))
        kubelet.until(lambda told: told.get(GPU) == [("a", False)] and bool(kubelet.warnings))
    assert kubelet.warnings == [("device_plugin_gone", "following it has failed: RecursionError: a bug")]
    assert "RecursionError: a bug" in kubelet.plugins.problems()[0]
    plugin.stop()
    again = DevicePlugin(tmp_path, GPU)
    undo.callback(again.stop)
    again.register()
    again.tell(("b", True, None))
    kubelet.until(lambda told: told.get(GPU) == [("b", True)])


def test_a_node_that_cannot_be_costs_no_device(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.register()
    plugin.tell(("a", True, -1), ("b", True, 2**40), ("c", True, 1))
    kubelet.until(lambda told: len(told.get(GPU, ())) == 3)
    (pool,) = kubelet.plugins.pools()
    assert [device.nodes for device in pool.devices] == [0, 0, 2]
    node = managers(topology_manager_policy="single-numa-node").knowing(None, kubelet.plugins.pools())
    promises = initial(node)
    decision = admit(node, promises, asking("p"))
    assert isinstance(decision, Admitted)
    assert [one.id for one in decision.promises.of_pod("p").of(DeviceHoldings).devices_of("app")] == ["c"]
    assert isinstance(admit(node, decision.promises, asking("q")), Rejected), "nothing is near a node that can't be"


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_topology_without_nodes_is_no_preference(kubelet: Kubelet, plugin: DevicePlugin, policy: str) -> None:
    plugin.register()
    plugin.tell_all(MESSAGES.Device(ID="a", health="Healthy", topology=MESSAGES.TopologyInfo()))
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    node = managers(topology_manager_policy=policy).knowing(None, kubelet.plugins.pools())
    assert isinstance(admit(node, initial(node), asking("p")), Admitted)


def test_it_is_forgotten_some_time_after_it_has_gone(
    kubelet: Kubelet, plugin: DevicePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    plugin.tell(("a", True, 0))
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    plugin.stop()
    kubelet.until(lambda told: told.get(GPU) == [("a", False)])
    monkeypatch.setattr(device_plugins, "GRACE_SECONDS", -1.0)
    assert kubelet.told() == {}


def test_a_container_is_prepared_if_the_plugin_wants_that(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.options.pre_start_required = True
    plugin.register()
    plugin.tell(("a", True, None))
    kubelet.until(lambda told: GPU in told and bool(told[GPU]))
    node = managers().knowing(None, kubelet.plugins.pools())
    decision = admit(node, initial(node), asking("p"))
    assert isinstance(decision, Admitted)
    own = decision.promises.of_pod("p").of(DeviceHoldings).devices_of("app")
    assert kubelet.plugins.prepare(own) is None
    assert plugin.asked[-1] == ("prepare", ["a"])
    plugin.stop()
    kubelet.until(lambda told: told.get(GPU) == [("a", False)])
    unprepared = kubelet.plugins.prepare(own)
    assert unprepared is not None
    assert "is gone" in unprepared.why


@pytest.mark.parametrize(
    ("resource", "asked", "why"),
    [
        (GPU, {"version": "v1alpha1"}, "is not supported"),
        (GPU, {"endpoint": "../x.sock"}, "is no name of a socket"),
        (GPU, {"endpoint": ".."}, "is no name of a socket"),
        ("gpu", {}, "is invalid"),
        ("kubernetes.io/gpu", {}, "is invalid"),
        ("example.com/nic", {}, "is given by the configuration"),
    ],
)
def test_what_cannot_be_registered_is_refused(
    kubelet: Kubelet, tmp_path: Path, undo: ExitStack, resource: str, asked: dict[str, str], why: str
) -> None:
    kubelet.plugins.configured = lambda: frozenset({"example.com/nic"})
    made = DevicePlugin(tmp_path, resource)
    undo.callback(made.stop)
    with pytest.raises(grpc.RpcError, match=why):
        made.register(**asked)
    assert kubelet.told() == {}
