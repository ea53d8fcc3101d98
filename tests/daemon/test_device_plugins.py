"""Device plugins register, tell their devices, die and come back; pods get what they give, as from kubelet."""

import gc
import io
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import grpc
import pytest
from msgspec.structs import replace

from nodeagent.core.admission.managers import Admitted, Managers, Rejected, admit, initial
from nodeagent.core.model.device_pools import DevicePluginPostponedError
from nodeagent.core.model.held_device import HeldDevice
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.resources.cpu.holdings import own_set_of
from nodeagent.core.resources.devices.holdings import DeviceHoldings
from nodeagent.daemon.plugins import device_plugins, questions
from nodeagent.daemon.plugins.device_plugins import DevicePlugins
from nodeagent.daemon.turn.runs import Unprepared
from nodeagent.edge.transport.listening import listen
from nodeagent.edge.transport.serving import ServingThread
from nodeagent.formats.syntax.bind_address import UnixAddress
from nodeagent.formats.wire import device_plugins as wire
from nodeagent.formats.wire.device_plugins import decode_variables
from nodeagent.formats.wire.protobuf import ProtobufError
from tests.support.builders import managers, pod
from tests.support.device_plugin import HOSTILE_STATUSES, MESSAGES, PATIENCE_SECONDS, DevicePlugin, RawPlugin
from tests.support.pods import app

GPU = "example.com/gpu"
T = TypeVar("T")


class Kubelet:
    """The registration as plugins see it, and what they have told."""

    def __init__(self, directory: Path, undo: ExitStack) -> None:
        self._changed = threading.Condition()
        self.wakes = 0
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
            self.wakes += 1
            self._changed.notify_all()

    def until(self, holds: Callable[[dict[str, list[tuple[str, bool]]]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: holds(self.told()), PATIENCE_SECONDS), self.told()

    def in_turns(self, tried: Callable[[], T], is_over: Callable[[T], bool]) -> T:
        """Try in turn after turn, until it is over. Each turn waits for the wake-up of the last."""
        while True:
            before = self.wakes
            self.plugins.begin_turn()
            if is_over(found := tried()):
                return found
            with self._changed:
                assert self._changed.wait_for(lambda: self.wakes > before, PATIENCE_SECONDS)  # noqa: B023 - called at once

    def decide(self, node: Managers, promises: Promises, of: Pod) -> Admitted | Rejected:
        return self.in_turns(
            lambda: admit(node, promises, of), lambda found: isinstance(found, Admitted) or not found.is_postponed
        )

    def prepare(self, held: tuple[HeldDevice, ...]) -> Unprepared | None:
        return self.in_turns(lambda: self.plugins.prepare(held), lambda found: found is None or not found.is_postponed)

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
        decision = kubelet.decide(node, promises, asking(uid))
        assert isinstance(decision, Admitted), decision.message
        promises = decision.promises
    ids = [[one.id for one in promises.of_pod(uid).of(DeviceHoldings).devices_of("app")] for uid in ("p", "q")]
    assert ids == [["a"], ["b"]]
    assert node.topology.numa_of(own_set_of(promises, "q", "app") or CpuSet()) == NumaSet.of(1)
    answer = promises.of_pod("q").of(DeviceHoldings).answer_of("app", GPU)
    assert answer is not None
    assert decode_variables(answer) == (("GPU_VISIBLE", "b"),)
    assert plugin.asked == [("allocate", ["a"]), ("allocate", ["b"])]
    assert isinstance(kubelet.decide(node, promises, asking("r")), Rejected), "an unhealthy one is nobody's"
    assert isinstance(admit(node.tried_out(), initial(node), asking("s")), Admitted)
    assert len(plugin.asked) == 2, "a trial asks nobody"


def test_its_preference_counts_among_what_the_affinity_leaves(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.options.get_preferred_allocation_available = True
    plugin.preferred = ["c", "b"]
    plugin.register()
    plugin.tell(("a", True, 0), ("b", True, 0), ("c", True, 0), ("d", True, 1))
    kubelet.until(lambda told: len(told.get(GPU, ())) == 4)
    node = managers(topology_manager_policy="restricted").knowing(None, kubelet.plugins.pools())
    decision = kubelet.decide(node, initial(node), asking("p", 2))
    assert isinstance(decision, Admitted)
    assert [one.id for one in decision.promises.of_pod("p").of(DeviceHoldings).devices_of("app")] == ["b", "c"]
    assert plugin.asked == [("preferred", ["a", "b", "c"]), ("allocate", ["b", "c"])]


def test_answers_for_a_postponed_pod_are_kept_until_it_is_asked_for_again(
    kubelet: Kubelet, plugin: DevicePlugin
) -> None:
    """A container runtime asks again some minutes later, where the agent does in the next turn."""
    passed_seconds = 0.0
    kubelet.clock = lambda: passed_seconds
    plugin.register()
    plugin.tell(*((f"d{n}", True, None) for n in range(4)))
    kubelet.until(lambda told: len(told.get(GPU, ())) == 4)
    served = kubelet.plugins.pools()[0].plugin
    assert served is not None

    def decide() -> bool:
        try:
            for n in range(4):
                served.allocate("uid", (f"d{n}",))
        except DevicePluginPostponedError:
            return False
        return True

    def ask_three(asked_before: int) -> None:
        tries = iter(range(3))
        kubelet.in_turns(lambda: (decide(), next(tries))[1] == 2, bool)
        kubelet.until(lambda _: len(plugin.asked) == asked_before + 3)

    ask_three(0)
    for _ in range(3):
        kubelet.plugins.begin_turn()  # turns that don't decide it
    passed_seconds += 300
    assert kubelet.in_turns(decide, bool)
    assert len(plugin.asked) == 4, "no question is asked again"
    ask_three(4)
    assert plugin.asked[4:7] == plugin.asked[:3], "the next decision asks anew"
    passed_seconds += 601
    kubelet.plugins.begin_turn()
    kubelet.plugins.begin_turn()
    assert kubelet.in_turns(decide, bool)
    assert len(plugin.asked) == 11, "the answers were too old"


def test_an_error_that_is_kept_holds_nothing_of_what_the_plugin_has_sent(
    kubelet: Kubelet, plugin: DevicePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large:
        """What has been decoded of a message."""

    held: list[weakref.ref[Large]] = []

    def fails(_message: bytes) -> NoReturn:
        large = Large()
        held.append(weakref.ref(large))
        raise ProtobufError("too large")

    plugin.register()
    plugin.tell(("a", True, None))
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    monkeypatch.setattr(wire, "decode_allocated", fails)
    node = managers().knowing(None, kubelet.plugins.pools())
    decision = kubelet.decide(node, initial(node), asking("p"))
    assert isinstance(decision, Rejected)
    assert f"the device plugin of {GPU}: too large" in decision.message
    gc.collect()
    assert [one() for one in held] == [None]


def test_a_plugin_whose_devices_change_with_each_answer_is_asked_a_bounded_number_of_times(
    kubelet: Kubelet, plugin: DevicePlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MOST_QUESTIONS", 5)
    plugin.register()
    plugin.tell(*((f"d{n}", True, None) for n in range(9)))
    kubelet.until(lambda told: len(told.get(GPU, ())) == 9)
    numbers = iter(range(9))

    def decide() -> Admitted | Rejected:
        plugged = tuple(replace(pool, devices=pool.devices[next(numbers) :]) for pool in kubelet.plugins.pools())
        node = managers().knowing(None, plugged)
        return admit(node, initial(node), asking("p"))

    decision = kubelet.in_turns(decide, lambda found: isinstance(found, Admitted) or not found.is_postponed)
    assert isinstance(decision, Rejected)
    assert f"the device plugin of {GPU}: one decision has needed more than 5 calls of the plugin" in decision.message
    assert len(plugin.asked) == 5


def test_who_has_its_answer_is_decided_while_the_plugin_is_asked_about_another_pod(
    kubelet: Kubelet, plugin: DevicePlugin
) -> None:
    plugin.register()
    plugin.tell(("a", True, None), ("b", True, None))
    kubelet.until(lambda told: len(told.get(GPU, ())) == 2)
    node = managers().knowing(None, kubelet.plugins.pools())
    promises = initial(node)
    kubelet.plugins.begin_turn()
    before = kubelet.wakes
    assert isinstance(admit(node, promises, asking("p")), Rejected)
    kubelet.until(lambda _: kubelet.wakes > before)
    plugin.answers.clear()
    kubelet.plugins.begin_turn()
    assert isinstance(admit(node, promises, asking("q")), Rejected)
    assert isinstance(admit(node, promises, asking("p")), Admitted)


def test_who_waits_for_a_plugin_asks_one_question_after_the_other_and_others_wait_for_that(
    kubelet: Kubelet, plugin: DevicePlugin
) -> None:
    plugin.answers.clear()
    plugin.register()
    plugin.tell(("a", True, None), ("b", True, None))
    kubelet.until(lambda told: len(told.get(GPU, ())) == 2)
    node = managers().knowing(None, kubelet.plugins.pools())
    promises = initial(node)
    for _ in range(3):
        kubelet.plugins.begin_turn()
        first, second = (admit(node, promises, asking(uid)) for uid in ("p", "q"))
        assert isinstance(first, Rejected)
        assert first.message == f"the device plugin of {GPU}: it has not answered yet"
        assert isinstance(second, Rejected)
        assert second.message == f"the device plugin of {GPU} has not answered about another pod yet"
        assert isinstance(admit(node, promises, pod("r", app(cpu="2"))), Admitted), "it needs no plugin"
    plugin.answers.set()
    decision = kubelet.decide(node, promises, asking("p"))
    assert isinstance(decision, Admitted)
    assert isinstance(kubelet.decide(node, decision.promises, asking("q")), Admitted)
    assert plugin.asked == [("allocate", ["a"]), ("allocate", ["b"])]


def test_one_that_refuses_refuses_the_pod_and_stays(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.refuses = "no such luck"
    plugin.register()
    plugin.tell(("a", True, None))
    kubelet.until(lambda told: GPU in told and bool(told[GPU]))
    node = managers().knowing(None, kubelet.plugins.pools())
    decision = kubelet.decide(node, initial(node), asking("p"))
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
    decision = kubelet.decide(node, initial(node), asking("p"))
    assert isinstance(decision, Rejected)
    assert "it has not answered in time" in decision.message
    assert kubelet.told() == {GPU: [("a", False)]}


def test_one_that_waited_for_somebody_else_refuses_and_stays(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.refuses, plugin.status = "its own server is late", grpc.StatusCode.DEADLINE_EXCEEDED
    plugin.register()
    plugin.tell(("a", True, None))
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    node = managers().knowing(None, kubelet.plugins.pools())
    decision = kubelet.decide(node, initial(node), asking("p"))
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
    decision = kubelet.decide(node, initial(node), asking("p"))
    assert isinstance(decision, Rejected)
    assert f"the device plugin of {GPU}: it violates the gRPC protocol" in decision.message
    assert kubelet.told() == {GPU: [("a", False)]}
    assert "it violates the gRPC protocol" in kubelet.plugins.problems()[0]


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
    assert "it violates the gRPC protocol" in problem
    assert problem in kubelet.plugins.problems()[0]
    raw.ends_list.clear()
    raw.register()
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    assert kubelet.plugins.problems() == ()


def test_whatever_fails_in_following_a_plugin_is_seen_and_it_is_followed_again(
    kubelet: Kubelet, raw: RawPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_plugins, "AGAIN_SECONDS", 0.01)

    def fails(_message: bytes) -> NoReturn:
        raise RecursionError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(wire, "decode_devices", fails)
        raw.register()
        kubelet.until(lambda told: told == {GPU: []} and bool(kubelet.warnings))
    problem = "reading its lists has failed, and is tried again: RecursionError: a bug"
    assert kubelet.warnings[0] == ("device_plugin_gone", problem)
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    assert kubelet.plugins.problems() == ()


def test_a_node_that_cannot_be_costs_no_device(kubelet: Kubelet, plugin: DevicePlugin) -> None:
    plugin.register()
    plugin.tell(("a", True, -1), ("b", True, 2**40), ("c", True, 1))
    kubelet.until(lambda told: len(told.get(GPU, ())) == 3)
    (pool,) = kubelet.plugins.pools()
    assert [device.nodes for device in pool.devices] == [0, 0, 2]
    node = managers(topology_manager_policy="single-numa-node").knowing(None, kubelet.plugins.pools())
    promises = initial(node)
    decision = kubelet.decide(node, promises, asking("p"))
    assert isinstance(decision, Admitted)
    assert [one.id for one in decision.promises.of_pod("p").of(DeviceHoldings).devices_of("app")] == ["c"]
    assert isinstance(kubelet.decide(node, decision.promises, asking("q")), Rejected), (
        "nothing is near a node that can't be"
    )


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_topology_without_nodes_is_no_preference(kubelet: Kubelet, plugin: DevicePlugin, policy: str) -> None:
    plugin.register()
    plugin.tell_all(MESSAGES.Device(ID="a", health="Healthy", topology=MESSAGES.TopologyInfo()))
    kubelet.until(lambda told: told.get(GPU) == [("a", True)])
    node = managers(topology_manager_policy=policy).knowing(None, kubelet.plugins.pools())
    assert isinstance(kubelet.decide(node, initial(node), asking("p")), Admitted)


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
    decision = kubelet.decide(node, initial(node), asking("p"))
    assert isinstance(decision, Admitted)
    own = decision.promises.of_pod("p").of(DeviceHoldings).devices_of("app")
    assert kubelet.prepare(own) is None
    assert plugin.asked[-1] == ("prepare", ["a"])
    plugin.stop()
    kubelet.until(lambda told: told.get(GPU) == [("a", False)])
    unprepared = kubelet.prepare(own)
    assert unprepared is not None
    assert "has ended or lost its connection" in unprepared.why


@pytest.mark.parametrize(
    ("resource", "asked", "why"),
    [
        (GPU, {"version": "v1alpha1"}, "is not supported"),
        (GPU, {"endpoint": "../x.sock"}, "is not the name of a socket"),
        (GPU, {"endpoint": ".."}, "is not the name of a socket"),
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
