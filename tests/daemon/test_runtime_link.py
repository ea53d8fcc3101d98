"""The agent stays connected to a container runtime, and changes reach it at any time, against a runtime as strict as containerd."""

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import pytest

from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import (
    Answer,
    Call,
    Event,
    NriResources,
    Runtime as RuntimeValue,
    Synchronized,
    Update,
)
from nodeagent.daemon import service
from nodeagent.daemon.domains.runtime.runtime_link import PAUSES_SECONDS, Push, RuntimeLink
from nodeagent.daemon.reports.logs import make_log
from nodeagent.edge.runtime.nri import Answered, NriError
from tests.support.nri_runtime import NRI, PATIENCE_SECONDS, VERSIONS, Gone, Runtime, pods_and_containers

UPDATES = tuple(Update(f"{number:064x}", NriResources(cpus=CpuSet.of(0, 1))) for number in range(100))


class Quiet:
    name = "nodeagent"
    index = 90
    events = frozenset({Event.CREATE_CONTAINER})

    def configure(self, runtime: RuntimeValue) -> None: ...

    def synchronize(self, _known: Synchronized, _until: float) -> tuple[Update, ...]:
        return ()

    def handle(self, _call: Call, _until: float) -> Answer:
        return Answer()

    def shut_down(self) -> None: ...

    def note(self, answered: Answered) -> None: ...


class Linked:
    """A link in a thread of its own, which waits between attempts until it is told that the time is over."""

    def __init__(self, path: Path) -> None:
        self.lost: Queue[tuple[str, float]] = Queue()
        self.go_on: Queue[None] = Queue()
        self.link = RuntimeLink(
            path,
            Quiet(),
            lambda err, seconds: self.lost.put((err.message, seconds)),
            pause=lambda _: self.go_on.get(timeout=PATIENCE_SECONDS),
        )
        self.thread = threading.Thread(target=self.link.run)
        self.thread.start()

    def loss(self) -> tuple[str, float]:
        return self.lost.get(timeout=PATIENCE_SECONDS)

    def close(self) -> None:
        self.link.close()
        self.go_on.put(None)
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


@contextmanager
def linked(path: Path) -> Iterator[Linked]:
    one = Linked(path)
    try:
        yield one
    finally:
        one.close()


@pytest.fixture(params=VERSIONS, ids=lambda version: version.nri)
def runtime(request, tmp_path) -> Iterator[Runtime]:
    one = Runtime(tmp_path / "nri.sock", request.param)
    yield one
    one.close()


def test_it_waits_longer_from_one_attempt_to_the_next(tmp_path):
    with linked(tmp_path / "nri.sock") as one:
        for seconds in (*PAUSES_SECONDS, PAUSES_SECONDS[-1]):
            problem, pause = one.loss()
            assert "No such file" in problem
            assert pause == seconds
            one.go_on.put(None)
        one.loss()


def test_a_runtime_that_comes_back_is_served_again(tmp_path):
    path = tmp_path / "nri.sock"
    with linked(path) as one:
        one.loss()
        for _ in range(3):
            runtime = Runtime(path)
            one.go_on.put(None)
            connection = runtime.accept_plugin()
            connection.synchronize([], [])
            runtime.close()
            problem, pause = one.loss()
            assert "it closed the connection" in problem
            assert pause == PAUSES_SECONDS[0], "it was whole in between"


def test_a_runtime_that_never_comes_as_far_as_to_synchronize_is_no_success(runtime):
    with linked(runtime.path) as one:
        pauses = []
        for _ in range(3):
            runtime.accept_plugin().close()
            pauses.append(one.loss()[1])
            one.go_on.put(None)
        assert pauses == list(PAUSES_SECONDS[:3])


def test_after_a_bug_the_runtime_is_served_again(runtime, monkeypatch):
    class Failing(Quiet):
        fails = True

        def synchronize(self, _known: Synchronized, _until: float) -> tuple[Update, ...]:
            if self.fails:
                self.fails = False
                raise ValueError("a bug")
            return ()

    log = io.StringIO()
    monkeypatch.setattr(service, "THREAD_AGAIN_SECONDS", 0.0)
    link = RuntimeLink(runtime.path, Failing(), lambda *_: None)
    thread = threading.Thread(target=service.keep_working, args=("nri", make_log(log), link.run))
    thread.start()
    with pytest.raises(Gone):
        runtime.accept_plugin().synchronize([], [])
    assert runtime.accept_plugin().synchronize([], []) == []
    link.close()
    thread.join(PATIENCE_SECONDS)
    assert "ValueError: a bug" in log.getvalue()


def test_it_ends_while_it_serves(runtime):
    with linked(runtime.path):
        connection = runtime.accept_plugin()
        connection.synchronize([], [])
    connection.wait_for_end()


def test_it_ends_while_it_pauses(tmp_path):
    lost = threading.Event()
    link = RuntimeLink(tmp_path / "nri.sock", Quiet(), lambda *_: lost.set())
    thread = threading.Thread(target=link.run)
    thread.start()
    assert lost.wait(PATIENCE_SECONDS)
    link.close()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_changes_are_pushed_beside_the_plugin_that_serves(runtime):
    pods, containers = pods_and_containers(4)
    with linked(runtime.path):
        serving = runtime.accept_plugin()
        serving.synchronize(pods, containers)
        for _ in range(3):
            with Push(runtime.path, lambda _: UPDATES, index=91) as push:
                pushing = runtime.accept()
                registered = pushing.register()
                assert (registered.plugin_name, registered.plugin_idx) == ("nodeagent-push", "91")
                assert pushing.configure() == 1 << (Event.REMOVE_POD_SANDBOX - 1)
                updates = pushing.synchronize(pods, containers)
                known = push.sent(PATIENCE_SECONDS)
                pushing.change(Event.REMOVE_POD_SANDBOX, pods[0])
            pushing.wait_for_end()
            assert [update.container_id for update in updates] == [update.container_id for update in UPDATES]
            assert {update.linux.resources.cpu.cpus for update in updates} == {"0-1"}
            assert [container.id for container in known.containers] == [container.id for container in containers]
        request = NRI.CreateContainerRequest(pod=pods[0], container=containers[0])
        serving.call("CreateContainer", request, NRI.CreateContainerResponse)


def test_changes_are_pushed_with_the_last_part_of_what_runs(runtime):
    pods, containers = pods_and_containers(4)
    with Push(runtime.path, lambda _: UPDATES[:1], index=91) as push:
        assert len(runtime.accept_plugin().synchronize(pods, containers, parts=3)) == 1
        assert len(push.sent(PATIENCE_SECONDS).containers) == 4


@pytest.mark.parametrize("stage", ["accepted", "registered", "configured"])
def test_a_push_that_the_runtime_does_not_take_says_so(runtime, stage):
    with Push(runtime.path, lambda _: UPDATES, index=91) as push:
        connection = runtime.accept()
        if stage != "accepted":
            connection.register()
        if stage == "configured":
            connection.configure()
        connection.close()
        with pytest.raises(NriError, match="closed the connection"):
            push.sent(PATIENCE_SECONDS)


def test_a_push_without_a_runtime_says_so(tmp_path):
    with Push(tmp_path / "nri.sock", lambda _: (), index=91) as push, pytest.raises(NriError, match="No such file"):
        push.sent(PATIENCE_SECONDS)


def test_a_push_of_more_than_the_runtime_reads_says_so(runtime):
    with Push(runtime.path, lambda _: UPDATES * 100, index=91) as push:
        connection = runtime.accept_plugin()
        connection.ask("Synchronize", b"")
        with pytest.raises(NriError, match="10000 changes don't fit"):
            push.sent(PATIENCE_SECONDS)


def test_a_push_that_is_not_asked_for_ends_all_the_same(runtime):
    with Push(runtime.path, lambda _: UPDATES, index=91) as push:
        connection = runtime.accept_plugin()
        with pytest.raises(TimeoutError):
            push.sent(0)
    connection.wait_for_end()
