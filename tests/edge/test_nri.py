"""A plugin's connection, against a runtime that keeps to NRI as containerd does, and against ones that don't."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.nri import (
    Answer,
    Call,
    Denial,
    Event,
    NriResources,
    Runtime as RuntimeValue,
    Synchronized,
    Update,
)
from nodeagent.edge.runtime.nri import Answered, NriConnection, NriError
from nodeagent.formats.runtime.calls import MAX_SYNCHRONIZED
from nodeagent.formats.runtime.ttrpc import TtrpcCode
from tests.support.nri_runtime import (
    DEBIAN_NEXT,
    NRI,
    PATIENCE_SECONDS,
    PLUGIN,
    TTRPC,
    VERSIONS,
    Connection,
    Gone,
    Refused,
    Runtime,
    mux_frame,
    pods_and_containers,
    ttrpc_frame,
)
from tests.support.shares import share_of

PINNED = NriResources(cpus=CpuSet.of(2, 3), mems=NumaSet.of(0), cpu_quota_us=200_000, cpu_period_us=100_000)
POD, CONTAINER = NRI.PodSandbox(id="p", uid="u"), NRI.Container(id="c", pod_sandbox_id="p", name="app")


class Recording:
    """A plugin that answers what it is told to, and keeps what it was asked."""

    name = "nodeagent"
    index = 90
    events = frozenset(Event)

    def __init__(self) -> None:
        self.runtimes: list[RuntimeValue] = []
        self.known: list[Synchronized] = []
        self.calls: Queue[Call] = Queue()
        self.untils: list[float] = []
        self.notes: Queue[Answered] = Queue()
        self.shut_downs = 0
        self.updates: tuple[Update, ...] = ()
        self.answer: Callable[[Call], Answer | Denial] = lambda _: Answer()

    def configure(self, runtime: RuntimeValue) -> None:
        self.runtimes.append(runtime)

    def synchronize(self, known: Synchronized, until: float) -> tuple[Update, ...]:
        self.known.append(known)
        self.untils.append(until)
        return self.updates

    def handle(self, call: Call, until: float) -> Answer | Denial:
        self.calls.put(call)
        self.untils.append(until)
        return self.answer(call)

    def shut_down(self) -> None:
        self.shut_downs += 1

    def note(self, answered: Answered) -> None:
        self.notes.put(answered)

    def called(self) -> Call:
        return self.calls.get(timeout=PATIENCE_SECONDS)

    def noted(self, is_it: Callable[[Answered], bool]) -> Answered:
        """Wait for such a note. It comes when its answer is already on its way."""
        return next(filter(is_it, iter(lambda: self.notes.get(timeout=PATIENCE_SECONDS), None)))


class Served:
    """A connection that serves in a thread of its own."""

    def __init__(self, path: Path, plugin: Recording, **options: float) -> None:
        patient = {"registration_seconds": PATIENCE_SECONDS, "send_seconds": PATIENCE_SECONDS}
        self.connection = NriConnection(path, plugin, **patient | options)
        self._pool = ThreadPoolExecutor(1)
        self._result = self._pool.submit(self.connection.serve)

    def close(self) -> None:
        self.connection.close()
        with suppress(NriError):
            self._result.result(PATIENCE_SECONDS)
        self._pool.shutdown()

    def ended(self) -> None:
        self._result.result(PATIENCE_SECONDS)

    def problem(self) -> str:
        with pytest.raises(NriError) as caught:
            self.ended()
        assert caught.value.hint
        return caught.value.message


@pytest.fixture
def plugin() -> Recording:
    return Recording()


@contextmanager
def listening(path: Path, version=DEBIAN_NEXT) -> Iterator[Runtime]:
    runtime = Runtime(path, version)
    try:
        yield runtime
    finally:
        runtime.close()


@pytest.fixture(params=VERSIONS, ids=lambda version: version.nri)
def runtime(request, tmp_path) -> Iterator[Runtime]:
    with listening(tmp_path / "nri.sock", request.param) as one:
        yield one


@pytest.fixture
def one_runtime(tmp_path) -> Iterator[Runtime]:
    with listening(tmp_path / "nri.sock") as one:
        yield one


@pytest.fixture
def served(request, plugin) -> Iterator[Served]:
    name = "runtime" if "runtime" in request.fixturenames else "one_runtime"
    one = Served(request.getfixturevalue(name).path, plugin)
    yield one
    one.close()


def synchronized(runtime: Runtime) -> Connection:
    connection = runtime.accept_plugin()
    connection.synchronize([], [])
    return connection


# As it should be, with each version.


def test_a_plugin_registers_and_subscribes_to_what_the_runtime_knows(runtime, plugin, served):
    connection = runtime.accept()
    registered = connection.register()
    assert (registered.plugin_name, registered.plugin_idx) == ("nodeagent", "90")
    assert connection.configure() == (1 << runtime.version.last_event) - 1
    (told,) = plugin.runtimes
    nri = tuple(map(int, runtime.version.nri.lstrip("v").split(".")))
    assert (told.name, told.version) == ("containerd", runtime.version.runtime)
    assert told.nri_version[:2] == nri[:2]
    assert (told.registration_timeout_ms, told.request_timeout_ms) == (5000, 2000)
    assert not served.connection.is_synchronized


def test_the_configuration_may_come_before_the_registration_is_answered(runtime, plugin, served):
    connection = runtime.accept()
    connection.registration()
    connection.configure()
    connection.answer_registration()
    connection.synchronize([], [])
    assert plugin.known == [Synchronized()]
    assert served.connection.is_synchronized


def test_a_hundred_containers_and_a_change_of_each(runtime, plugin, served):
    pods, containers = pods_and_containers(100)
    plugin.updates = tuple(Update(container.id, PINNED) for container in containers)
    connection = runtime.accept_plugin()
    updates = connection.synchronize(pods, containers)
    assert [update.container_id for update in updates] == [container.id for container in containers]
    assert {(u.linux.resources.cpu.cpus, u.linux.resources.cpu.mems) for u in updates} == {("2-3", "0")}
    assert sum(update.ByteSize() for update in updates) > 8192
    assert 4000 < connection.largest_frame <= 4096
    (known,) = plugin.known
    assert [sandbox.uid for sandbox in known.sandboxes] == [pod.uid for pod in pods]
    assert [container.pid for container in known.containers] == [container.pid for container in containers]
    assert known.containers[99].resources.cpu_quota_us == 200_000
    assert known.containers[99].oom_score_adj == -997


@pytest.mark.parametrize("parts", [2, 7, 60])
def test_what_runs_may_come_in_parts(one_runtime, plugin, served, parts):
    pods, containers = pods_and_containers(20)
    plugin.updates = (Update("c", PINNED),)
    connection = one_runtime.accept_plugin()
    assert len(connection.synchronize(pods, containers, parts=parts)) == 1
    (known,) = plugin.known
    assert {sandbox.id for sandbox in known.sandboxes} == {pod.id for pod in pods}
    assert {container.id for container in known.containers} == {container.id for container in containers}
    connection.synchronize(pods[:1], containers[:1])
    assert len(plugin.known[1].containers) == 1, "it begins anew"


def test_a_container_is_created_with_its_cpus_and_others_give_way(runtime, plugin, served):
    plugin.answer = lambda _: Answer(PINNED, (Update("other", NriResources(cpus=CpuSet.of(0, 1))),))
    connection = synchronized(runtime)
    request = NRI.CreateContainerRequest(pod=POD, container=CONTAINER)
    created = connection.call("CreateContainer", request, NRI.CreateContainerResponse)
    cpu = created.adjust.linux.resources.cpu
    assert (cpu.cpus, cpu.mems, cpu.quota.value, cpu.period.value) == ("2-3", "0", 200_000, 100_000)
    ((other,), call) = (created.update, plugin.called())
    assert (other.container_id, other.linux.resources.cpu.cpus) == ("other", "0-1")
    assert call.container is not None
    assert (call.event, call.sandbox.uid, call.container.name) == (Event.CREATE_CONTAINER, "u", "app")


def test_updates_and_stops_are_answered_with_changes(runtime, plugin, served):
    plugin.answer = lambda call: Answer(updates=(Update(call.event.name, PINNED, ignore_failure=True),))
    connection = synchronized(runtime)
    resources = NRI.LinuxResources(cpu={"shares": {"value": 2}})
    request = NRI.UpdateContainerRequest(pod=POD, container=CONTAINER, linux_resources=resources)
    (update,) = connection.call("UpdateContainer", request, NRI.UpdateContainerResponse).update
    assert (update.container_id, update.ignore_failure) == ("UPDATE_CONTAINER", True)
    assert plugin.called().resources == NriResources(cpu_shares=2)
    stop = NRI.StopContainerRequest(pod=POD, container=CONTAINER)
    (update,) = connection.call("StopContainer", stop, NRI.StopContainerResponse).update
    assert update.container_id == "STOP_CONTAINER"


def test_every_change_of_state_arrives_by_whichever_method(runtime, plugin, served):
    connection = synchronized(runtime)
    happens = [
        (1, None),
        (5, CONTAINER),
        (6, CONTAINER),
        (7, CONTAINER),
        (9, CONTAINER),
        (11, CONTAINER),
        (2, None),
        (3, None),
    ]
    for event, container in happens:
        connection.change(event, POD, container)
        call = plugin.called()
        assert (call.event, call.container is None) == (event, container is None)


def test_a_start_can_be_denied(runtime, plugin, served):
    plugin.answer = lambda call: Denial("db-0 is still on CPU 2") if call.event is Event.START_CONTAINER else Answer()
    connection = synchronized(runtime)
    connection.change(5, POD, CONTAINER)
    with pytest.raises(Refused, match="db-0 is still on CPU 2") as caught:
        connection.change(6, POD, CONTAINER)
    assert caught.value.code == TtrpcCode.FAILED_PRECONDITION
    connection.change(11, POD, CONTAINER)


def test_a_shutdown_is_answered(runtime, plugin, served):
    connection = synchronized(runtime)
    connection.call("Shutdown", NRI.Empty(), NRI.Empty)
    assert plugin.shut_downs == 1
    connection.close()
    assert "it closed the connection" in served.problem()


@pytest.mark.parametrize(("timeout_ns", "seconds"), [(700_000_000, 0.7), (0, 2.0)])
def test_each_answer_has_a_deadline_and_what_was_left_of_it(one_runtime, plugin, served, timeout_ns, seconds):
    connection = synchronized(one_runtime)
    before = time.monotonic()
    connection.call("StateChange", NRI.StateChangeEvent(event=1, pod=POD), NRI.Empty, timeout_ns=timeout_ns)
    noted = plugin.noted(lambda note: note.method == "StateChange")
    after = time.monotonic()
    assert before + seconds <= plugin.untils[-1] <= after + seconds
    assert (noted.method, noted.code) == ("StateChange", TtrpcCode.OK)
    assert noted.took_seconds + noted.left_seconds == pytest.approx(seconds)
    assert 0 <= noted.took_seconds <= after - before


def test_a_call_that_waits_for_another_has_the_less_time(one_runtime, plugin, served):
    release = threading.Event()
    connection = synchronized(one_runtime)
    plugin.answer = lambda _: (release.wait(PATIENCE_SECONDS), Answer())[1]
    first = connection.ask("StateChange", NRI.StateChangeEvent(event=1, pod=POD).SerializeToString())
    plugin.called()
    second = connection.ask("StateChange", NRI.StateChangeEvent(event=2, pod=POD).SerializeToString(), timeout_ns=1)
    third = connection.ask("Unknown", b"x" * 100_000)
    release.set()
    connection.answer(first, NRI.Empty)
    connection.answer(second, NRI.Empty)
    with pytest.raises(Refused):
        connection.answer(third, NRI.Empty)
    assert plugin.noted(lambda note: note.left_seconds < 0).method == "StateChange"


# Ends.


@pytest.mark.parametrize("stage", ["accepted", "registering", "registered", "configured", "synchronized", "called"])
def test_a_runtime_that_goes_is_one_finding(one_runtime, plugin, served, stage):
    connection = one_runtime.accept()
    if stage != "accepted":
        connection.registration()
    if stage not in {"accepted", "registering"}:
        connection.answer_registration()
    if stage in {"configured", "synchronized", "called"}:
        connection.configure()
    if stage in {"synchronized", "called"}:
        connection.synchronize([], [])
    if stage == "called":
        plugin.answer = lambda _: (connection.close(), Answer())[1]
        connection.ask("StateChange", NRI.StateChangeEvent(event=1, pod=POD).SerializeToString())
    else:
        connection.close()
    assert "it closed the connection" in served.problem()
    assert served.connection.is_synchronized == (stage in {"synchronized", "called"})


def test_a_runtime_that_is_killed_in_the_middle_of_a_message(one_runtime, served):
    connection = synchronized(one_runtime)
    connection.send_bytes(mux_frame(1, ttrpc_frame(9, 1, bytes(50)))[:40])
    connection.close()
    assert "it closed the connection" in served.problem()


def test_no_runtime_is_one_finding(tmp_path, plugin):
    with pytest.raises(NriError, match="No such file") as caught:
        NriConnection(tmp_path / "nri.sock", plugin).serve()
    assert "disable = false" in caught.value.hint


def test_a_runtime_that_has_ended_is_one_finding(tmp_path, plugin):
    with listening(tmp_path / "nri.sock") as runtime:
        runtime.stop_listening()
        with pytest.raises(NriError, match="Connection refused"):
            NriConnection(runtime.path, plugin).serve()


@pytest.mark.parametrize("stage", ["silent", "registered", "configured"])
def test_a_runtime_that_hangs_is_given_up(one_runtime, plugin, stage):
    served = Served(one_runtime.path, plugin, registration_seconds=0.2)
    connection = one_runtime.accept()
    with suppress(Gone, BrokenPipeError):  # this process may be slow, too
        if stage == "registered":
            connection.register()
        if stage == "configured":
            connection.registration()
            connection.configure()
    assert "has not accepted the plugin within 0.2 s" in served.problem()
    connection.wait_for_end()
    served.close()


def test_a_plugin_ends_when_it_is_asked_to(one_runtime, served):
    connection = synchronized(one_runtime)
    served.connection.close()
    connection.wait_for_end()
    served.ended()
    served.connection.close()


def test_a_plugin_that_was_closed_before_does_not_serve(one_runtime, plugin):
    connection = NriConnection(one_runtime.path, plugin)
    connection.close()
    connection.serve()
    with pytest.raises(Gone):
        one_runtime.accept().registration()


def test_a_plugin_ends_while_it_answers(one_runtime, plugin, served):
    release = threading.Event()
    plugin.answer = lambda _: (release.wait(PATIENCE_SECONDS), Answer())[1]
    connection = synchronized(one_runtime)
    connection.ask("StateChange", NRI.StateChangeEvent(event=1, pod=POD).SerializeToString())
    plugin.called()
    served.connection.close()
    connection.wait_for_end()
    release.set()
    served.ended()


@pytest.mark.parametrize("bug", [KeyError, TimeoutError])
def test_a_bug_of_the_plugins_ends_the_connection(one_runtime, plugin, bug):
    def fail(_: Call) -> Answer:
        raise bug("it is not the runtime's")

    plugin.answer = fail
    served = Served(one_runtime.path, plugin)
    connection = synchronized(one_runtime)
    connection.ask("StateChange", NRI.StateChangeEvent(event=1, pod=POD).SerializeToString())
    connection.wait_for_end()
    with pytest.raises(bug, match="not the runtime's"):
        served.ended()


# Lies.


def test_a_refused_registration_says_why(one_runtime, served):
    connection = one_runtime.accept()
    connection.registration()
    connection.answer_registration(code=2, message="plugin connections are disabled")
    assert "plugin connections are disabled (2)" in served.problem()
    connection.wait_for_end()


UNASKED = {
    "another stream": lambda c: c.answer_registration(stream=3),
    "twice": lambda c: (c.answer_registration(), c.answer_registration()),
    "a request": lambda c: c.send(2, ttrpc_frame(1, 1, b"")),
    "no protobuf": lambda c: c.send(2, ttrpc_frame(1, 2, b"\xff")),
    "another protocol": lambda c: c.send_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "too long a frame": lambda c: c.send_bytes(b"\0\0\0\1\xff\xff\xff\xff"),
    "too long a message": lambda c: c.send(1, b"\x7f\xff\xff\xff\0\0\0\1\1\0"),
}


@pytest.mark.parametrize("lie", UNASKED.values(), ids=UNASKED)
def test_what_is_no_nri_is_one_finding(one_runtime, served, lie):
    connection = one_runtime.accept()
    connection.registration()
    lie(connection)
    assert "it does not speak NRI" in served.problem()
    connection.wait_for_end()


def test_what_is_asked_too_early_is_refused(one_runtime, plugin, served):
    connection = one_runtime.accept()
    connection.register()
    with pytest.raises(Refused, match="the plugin is not configured yet"):
        connection.synchronize([], [])
    connection.configure()
    with pytest.raises(Refused, match="the plugin is not synchronized yet"):
        connection.change(1, POD)
    assert plugin.calls.empty()


NONSENSE: dict[str, tuple[Callable[[Connection], int], int]] = {
    "an unknown method": (lambda c: c.ask("Validate", b""), 12),
    "a long one": (lambda c: c.ask("Validate" * 100_000, b""), 12),
    "an unknown service": (lambda c: c.ask("StateChange", b"", service="grpc.health.v1.Health"), 12),
    "a stream of messages": (
        lambda c: c.ask("StateChange", NRI.StateChangeEvent(event=1, pod=POD).SerializeToString(), flags=2),
        12,
    ),
    "no payload": (lambda c: c.ask("CreateContainer", b""), 3),
    "half a payload": (lambda c: c.ask("Synchronize", b"\x0a\x7f"), 3),
    "no event": (lambda c: c.ask("StateChange", NRI.StateChangeEvent(pod=POD).SerializeToString()), 3),
    "no request": (lambda c: (c.send(1, ttrpc_frame(101, 1, b"\xff")), 101)[1], 3),
    "an even stream": (lambda c: (c.send(1, ttrpc_frame(100, 1, b"")), 100)[1], 3),
    "a stream again": (lambda c: (c.send(1, ttrpc_frame(1, 1, b"")), 1)[1], 3),
}


@pytest.mark.parametrize(("nonsense", "code"), NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_refused_and_the_next_call_answered(one_runtime, plugin, served, nonsense, code):
    connection = synchronized(one_runtime)
    with pytest.raises(Refused) as caught:
        connection.answer(nonsense(connection), NRI.Empty)
    assert caught.value.code == code
    assert len(caught.value.message) < 300
    connection.change(1, POD)
    assert plugin.called().event is Event.RUN_POD_SANDBOX
    assert plugin.calls.empty()


@pytest.mark.parametrize("is_registered", [False, True])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4, id="another protocol"),
        pytest.param(b"\xff" * 4096, id="garbage"),
        pytest.param(mux_frame(1, ttrpc_frame(1, 1, b"x" * 100))[:5], id="half a header"),
        pytest.param(mux_frame(1, ttrpc_frame(1, 1, b"x" * 100))[:40], id="half a frame"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_a_stranger_sends_ends_only_its_connection(one_runtime, plugin, served, sent, is_registered):
    """It is told with the next step, whatever the stranger knew of the protocol before."""
    connection = one_runtime.accept()
    connection.registration()
    if is_registered:
        connection.answer_registration()
        connection.configure()
    if sent:
        connection.send_bytes(sent)
    connection.close()
    assert str(one_runtime.path) in served.problem()
    assert (plugin.known, plugin.calls.empty(), served.connection.is_synchronized) == ([], True, False)


def test_what_came_later_in_ttrpc_is_ignored(one_runtime, served):
    connection = synchronized(one_runtime)
    connection.send(1, ttrpc_frame(1, 3, b"data of a stream"))
    connection.send(1, ttrpc_frame(1, 77, b""))
    connection.send_bytes(mux_frame(3, b"another connection"))
    connection.change(1, POD)


def test_a_list_without_end_is_one_finding(one_runtime, served):
    connection = one_runtime.accept_plugin()
    pod = NRI.PodSandbox(id="p")
    count = MAX_SYNCHRONIZED // 2 + 1
    more = NRI.SynchronizeRequest(pods=[pod] * count, more=True).SerializeToString()
    connection.answer(connection.ask("Synchronize", more), NRI.SynchronizeResponse)
    connection.ask("Synchronize", more)
    assert f"more than {MAX_SYNCHRONIZED} pods and containers" in served.problem()


def test_more_changes_than_the_runtime_reads_are_refused(one_runtime, plugin, served):
    plugin.updates = tuple(Update(f"{number:064}", PINNED) for number in range(6000))
    connection = one_runtime.accept_plugin()
    with pytest.raises(Refused) as caught:
        connection.synchronize([], [])
    assert caught.value.code == TtrpcCode.RESOURCE_EXHAUSTED


# Floods.


def test_a_flood_has_to_wait_and_loses_nothing(one_runtime, plugin, served):
    """While one call is being answered, at most what the socket and the queue hold is taken."""
    release = threading.Event()
    connection = synchronized(one_runtime)
    plugin.answer = lambda _: (release.wait(PATIENCE_SECONDS), Answer())[1]
    payload = NRI.StateChangeEvent(event=1, pod=NRI.PodSandbox(id="p", labels={"x": "y" * 3000})).SerializeToString()
    flood = b"".join(_request(stream, payload) for stream in range(101, 101 + 2 * 3000, 2))
    sent = connection.try_to_send(flood, seconds=0.5)
    assert sent < len(flood)
    assert sent < 4 << 20
    release.set()
    rest = threading.Thread(target=connection.send_bytes, args=(flood[sent:],))
    rest.start()
    for stream in range(101, 101 + 2 * 3000, 2):
        connection.answer(stream, NRI.Empty)
    rest.join(PATIENCE_SECONDS)


def _request(stream: int, payload: bytes) -> bytes:
    request = TTRPC.Request(service=PLUGIN, method="StateChange", payload=payload)
    return mux_frame(1, ttrpc_frame(stream, 1, request.SerializeToString()))


def test_a_runtime_that_reads_no_answers_is_given_up(one_runtime, plugin):
    plugin.updates = tuple(Update(f"{number:064}", PINNED) for number in range(4000))
    served = Served(one_runtime.path, plugin, send_seconds=0.2)
    connection = one_runtime.accept_plugin()
    with suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(20):
            connection.ask("Synchronize", b"")
    assert "has not read an answer within 0.2 s" in served.problem()
    served.close()


# Anything.


def traffic() -> list[bytes]:
    """Give what a runtime sends from the beginning to the end, message by message."""
    return [
        mux_frame(2, ttrpc_frame(1, 2, b"")),
        _call(1, "Configure", NRI.ConfigureRequest(runtime_name="containerd", runtime_version="2.1.9")),
        _call(3, "Synchronize", NRI.SynchronizeRequest(pods=[POD], containers=[CONTAINER])),
        _call(5, "CreateContainer", NRI.CreateContainerRequest(pod=POD, container=CONTAINER)),
        _call(7, "StateChange", NRI.StateChangeEvent(event=6, pod=POD, container=CONTAINER)),
        _call(9, "Shutdown", NRI.Empty()),
    ]


def _call(stream: int, method: str, request: Any) -> bytes:
    data = TTRPC.Request(service=PLUGIN, method=method, payload=request.SerializeToString()).SerializeToString()
    return mux_frame(1, ttrpc_frame(stream, 1, data))


BYTES = st.binary(max_size=12)


@settings(max_examples=share_of(150))
@given(
    st.lists(st.sampled_from(traffic()) | BYTES, max_size=10).map(b"".join)
    | st.tuples(st.just(b"".join(traffic())), st.integers(0, 800), st.integers(0, 8), BYTES).map(
        lambda four: four[0][: four[1]] + four[3] + four[0][four[1] + four[2] :]
    )
)
def test_whatever_a_runtime_says_ends_in_one_finding(tmp_path_factory, said):
    with listening(tmp_path_factory.mktemp("nri") / "s") as runtime:
        served = Served(runtime.path, Recording())
        connection = runtime.accept()
        connection.registration()
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.send_bytes(said)
        connection.close()
        assert "cannot serve the container runtime" in served.problem()
        served.close()
