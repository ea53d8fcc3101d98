"""Asking kubelet beside the runtime's calls: what is found out, what it costs where nobody answers, and what is said of that."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.domains.runtime.known_again import restore_known
from nodeagent.core.domains.runtime.pod_model import ToldBy
from nodeagent.core.model.nri import Answer, Event, Synchronized
from nodeagent.core.model.pod import Pod
from nodeagent.daemon.domains.runtime import kubelet_pods
from nodeagent.daemon.domains.runtime.containers import read_pod_annotations
from nodeagent.daemon.domains.runtime.kubelet_pods import PodsApi
from nodeagent.formats.checkpoint.node_state import decode_state, encode_state
from tests.daemon.test_containers import Desk, Log, event
from tests.support.kubelet import serving
from tests.support.nri_runtime import NRI, PATIENCE_SECONDS, Runtime
from tests.support.pods import app, burstable, pod
from tests.support.runtime_pods import kubelets, sandbox_of

WEB = pod("web", app("main", resources=burstable("1500m")), app("side"))
OTHER = pod("other", app("main", "1"))


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be loaded."""
    monkeypatch.setattr(kubelet_pods, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(kubelet_pods, "OF_ALL_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pods-api.sock"


class Asker:
    def __init__(self, path: Path, *, is_expected: bool = False) -> None:
        self.log: Any = Log()
        self.pods = PodsApi(path, self.log, is_expected=is_expected)

    def of(self, *pods: Pod) -> tuple[Any, ...]:
        return self.pods.ask([one.uid for one in pods], time.monotonic() + PATIENCE_SECONDS)

    @property
    def logged(self) -> list[str]:
        return [name for name, _ in self.log.lines]


def test_only_what_kubelet_has_is_known(path: Path) -> None:
    asker = Asker(path)
    with serving(path) as server:
        server.has(WEB)
        assert asker.of(WEB, OTHER) == (kubelets(WEB),)
        asker.pods.known = frozenset({WEB.uid})
        server.asked.clear()
        assert asker.pods.ask_unknown((WEB.uid, OTHER.uid), time.monotonic() + PATIENCE_SECONDS) == ()
        assert server.asked == [OTHER.uid], "the other one is saved"
        assert asker.pods.ask_unknown((WEB.uid,), time.monotonic() + PATIENCE_SECONDS) == ()
        assert server.asked == [OTHER.uid]
    assert (asker.pods.problem, asker.logged) == ("", [])


def test_a_kubelet_without_the_api_is_no_problem_and_a_socket_that_was_named_is(path: Path) -> None:
    asker = Asker(path)
    assert asker.of(WEB) == ()
    assert (asker.pods.problem, asker.logged) == ("", [])
    named = Asker(path, is_expected=True)
    assert named.of(WEB) == ()
    assert str(path) in named.pods.problem
    assert "there is no such socket" in named.pods.problem
    assert named.of(WEB) == ()
    assert named.logged == ["pods_api_failed"], "once"
    with serving(path) as server:
        server.has(WEB)
        assert named.of(WEB) == (kubelets(WEB),), "asked again at once"
    assert named.pods.problem == ""
    assert named.logged == ["pods_api_failed", "pods_api_answers"]


@pytest.mark.parametrize("raw", [b"nonsense", b"", b"\0" * 10**6], ids=["nonsense", "nothing", "too much"])
def test_an_answer_that_is_no_pod_is_one_finding(path: Path, raw: bytes) -> None:
    asker = Asker(path)
    with serving(path) as server:
        server.raw = raw
        assert asker.of(WEB, OTHER) == ()
        assert server.asked == [WEB.uid], "no more is asked of it"
        assert asker.of(WEB) == ()
    assert asker.logged == ["pods_api_failed"]
    assert "values that only kubelet knows are estimated" in asker.pods.problem


def test_anothers_pod_is_nobodys(path: Path) -> None:
    asker = Asker(path)
    with serving(path) as server:
        server.has(WEB)
        server.pods[OTHER.uid] = server.pods[WEB.uid]
        assert asker.of(OTHER) == ()
    assert "must be 'uid-other', as requested" in asker.pods.problem


def test_what_is_known_is_asked_about_again_when_somebody_wants_that(path: Path) -> None:
    asker = Asker(path)
    asker.pods.known = frozenset({WEB.uid})
    with serving(path) as server:
        server.has(WEB)
        asker.pods.ask_again([WEB.uid])
        assert asker.pods.ask_unknown((WEB.uid,), time.monotonic() + PATIENCE_SECONDS) == (kubelets(WEB),)
        assert asker.pods.ask_unknown((WEB.uid,), time.monotonic() + PATIENCE_SECONDS) == ()
        assert server.asked == [WEB.uid], "once"


@pytest.fixture
def hanging(path: Path) -> Iterator[socket.socket]:
    """Takes connections, and says nothing."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)
    yield listener
    listener.close()


def connections(listener: socket.socket) -> int:
    found = []
    while True:
        try:
            found.append(listener.accept()[0])
        except BlockingIOError:
            break
    for one in found:
        one.close()
    return len(found)


def test_one_that_has_not_answered_is_left_alone_for_a_while(
    path: Path, hanging: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_pods, "PATIENCE_SECONDS", 0.05)
    asker = Asker(path)
    assert asker.of(WEB) == ()
    assert asker.of(WEB) == asker.of(OTHER) == ()
    assert connections(hanging) == 1
    assert "it has not answered in time" in asker.pods.problem
    asker.pods.ask_again([OTHER.uid])
    assert asker.of(WEB) == ()
    assert connections(hanging) == 1, "somebody wants to know"
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 6)
    assert asker.of(WEB) == ()
    assert connections(hanging) == 1, "and then it is asked again"


def test_nobody_is_asked_when_there_is_no_time(path: Path) -> None:
    asker = Asker(path)
    with serving(path) as server:
        assert asker.pods.ask((WEB.uid,), time.monotonic() - 1) == ()
        assert server.asked == []
    assert asker.pods.problem == "", "that isn't kubelet's doing"


# With the runtime's calls.


def desk(tmp_path: Path, path: Path) -> Desk:
    made = Desk(tmp_path / "nri.sock", Asker(path, is_expected=True).pods)
    made.answered(Synchronized())
    return made


def sources(of: Desk, one: Pod) -> set[ToldBy]:
    entry = of.state.entry(one.uid)
    assert entry is not None
    return {
        known.by for known in restore_known(entry, of.state.runtime, lambda box: read_pod_annotations(box).pod, 2**36)
    }


def test_a_container_is_decided_on_with_what_kubelet_says_and_a_restart_needs_not_ask(
    tmp_path: Path, path: Path
) -> None:
    agent = desk(tmp_path, path)
    with serving(path) as server:
        server.has(WEB)
        assert isinstance(agent.answered(event(Event.CREATE_CONTAINER, WEB, "main")), Answer)
        assert server.asked == [WEB.uid]
        assert sources(agent, WEB) == {ToldBy.CGROUP_PARENT, ToldBy.PODS_API}
        entry = agent.state.entry(WEB.uid)
        assert entry is not None
        assert [one.name for one in entry.pod.containers] == ["main", "side"]
        assert decode_state(encode_state(agent.state, {})).state == agent.state
        agent.answered(Synchronized((sandbox_of(WEB), sandbox_of(OTHER))))
        assert server.asked == [WEB.uid, OTHER.uid], "only what is not known is asked for"
    assert "pods API" not in (agent.containers.standing_problem() or "")


def test_without_an_answer_there_is_the_estimate_and_a_problem(tmp_path: Path, path: Path) -> None:
    agent = desk(tmp_path, path)
    assert isinstance(agent.answered(event(Event.CREATE_CONTAINER, WEB, "main")), Answer)
    assert ToldBy.SEEN in sources(agent, WEB)
    problem = agent.containers.standing_problem()
    assert problem is not None
    assert "kubelet's pods API" in problem
    with serving(path) as server:
        server.has(WEB)
        assert isinstance(agent.answered(event(Event.CREATE_CONTAINER, WEB, "again")), Answer)
    assert sources(agent, WEB) == {ToldBy.CGROUP_PARENT, ToldBy.PODS_API}
    assert "pods API" not in (agent.containers.standing_problem() or "")


def test_a_retry_has_kubelet_asked_at_once(tmp_path: Path, path: Path) -> None:
    """Also about a pod that it has said something of, and without waiting for the runtime to call."""
    runtime = Runtime(tmp_path / "nri.sock")
    agent = desk(tmp_path, path)
    look = runtime.accept_plugin()
    assert look.synchronize([], []) == []
    agent.turn()
    look.close()
    with serving(path) as server:
        server.has(WEB)
        assert isinstance(agent.answered(event(Event.CREATE_CONTAINER, WEB, "main")), Answer)
        server.has(replace(WEB, containers=(*WEB.containers, app("third"))))
        agent.turn(retried=WEB.uid)
        look = runtime.accept_plugin()
        there = NRI.PodSandbox(id=sandbox_of(WEB).id, uid=WEB.uid, name=WEB.name, namespace=WEB.namespace)
        assert look.synchronize([there], []) == []
        agent.turn()
        assert server.asked == [WEB.uid] * 2
    (said,) = agent.state.runtime.pods
    assert [one.name for one in said.containers] == ["main", "side", "third"]
    look.close()
    runtime.close()


def test_a_kubelet_that_hangs_delays_no_answer_beyond_the_runtimes_patience(
    tmp_path: Path, path: Path, hanging: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubelet_pods, "PATIENCE_SECONDS", 0.05)
    agent = desk(tmp_path, path)
    assert isinstance(agent.answered(event(Event.CREATE_CONTAINER, WEB, "main")), Answer)
    assert isinstance(agent.answered(event(Event.CREATE_CONTAINER, OTHER, "main")), Answer)
    assert connections(hanging) == 1
