"""What the running agent answers over its socket to those who name a pod."""

import errno
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.turn.pod_sources import PodSource
from nodeagent.daemon.reports import api_operations
from nodeagent.daemon.reports.publisher import API_SOCKET, Publisher
from nodeagent.daemon.turn.requests import TurnRequest
from nodeagent.daemon.turn.wakeups import WakeUpReason
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError
from nodeagent.edge.transport import local_api
from nodeagent.edge.transport.local_api_client import ApiError, call
from nodeagent.errors import NodeAgentError
from nodeagent.formats.node_view import NodeView, view_document
from nodeagent.formats.wire.api_messages import format_result
from tests.support.daemon_model import Daemon, Steps, answered, watched
from tests.support.node_model import Machine
from tests.support.pods import app, pod
from tests.support.world import SMALL, node


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """Runs with a pod x/big and a pod y/big, which was refused."""
    machine = Machine(node(SMALL))
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.start()
        small, large = pod("big", app(cpu="1"), uid="uid-x"), pod("big", app(cpu="99"), uid="uid-y")
        daemon.files.pods = (replace(small, namespace="x"), replace(large, namespace="y"))
        daemon.rest()
        config: Any = SimpleNamespace(runtime_directory=str(tmp_path), metrics_bind_address="", pod_resources_socket="")
        with Publisher(daemon.agent, config, daemon.agent.edges.log) as publisher:
            publisher.listen()
            yield daemon


def retry(daemon: Daemon, name: str) -> Any:
    return answered(daemon, lambda: ask(daemon, name))


def ask(daemon: Daemon, name: str) -> Any:
    return call(f"{daemon.directory}/{API_SOCKET}", "retry", timeout_seconds=60, pod=name)


def logged(daemon: Daemon, event: str) -> int:
    return sum(line["event"] == event for line in daemon.said())


def test_a_name_that_two_pods_have_is_refused_and_both_are_named(daemon: Daemon) -> None:
    with pytest.raises(ApiError) as caught:
        retry(daemon, "big")
    assert caught.value.message == "2 pods are named 'big'"
    assert caught.value.hint.endswith(": x/big, y/big")
    assert daemon.agent.requests.take() == ()


@pytest.mark.parametrize("name", ["y/big", "uid-y"])
def test_a_pod_named_in_full_is_decided_again_when_the_answer_comes(daemon: Daemon, name: str) -> None:
    answer = retry(daemon, name)
    assert (answer["pod"], answer["uid"], answer["refusedBefore"]) == ("y/big", "uid-y", "OutOfcpu")
    assert logged(daemon, "pod_refused") == 2


def test_a_changed_manifest_that_was_refused_is_decided_again(daemon: Daemon) -> None:
    small, large = daemon.files.pods
    changed = replace(small, containers=pod("big", app(cpu="98")).containers)
    daemon.files.pods = (changed, large)
    daemon.rest()
    answer = retry(daemon, "x/big")
    assert (answer["pod"], answer["uid"], answer["refusedBefore"]) == ("x/big", "uid-x", "ResizeInfeasible")
    assert logged(daemon, "change_refused") == 2


def test_a_pod_that_runs_and_one_that_is_not_there_are_refused(daemon: Daemon) -> None:
    with pytest.raises(ApiError, match="pod x/big is not refused"):
        retry(daemon, "x/big")
    with pytest.raises(ApiError, match="no pod is named 'bigg'") as caught:
        retry(daemon, "bigg")
    assert "did you mean" in caught.value.hint
    assert daemon.agent.requests.take() == ()


def test_a_request_stays_noted_while_no_turn_can_look(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is decided on what can't be seen, and who asked is told so; the turn after that takes the request up."""

    def unseen(_: object) -> None:
        raise CgroupError("cannot read", path="pods", error=5, hint="see the kernel's log")

    with monkeypatch.context() as blind:
        blind.setattr(daemon.agent.edges.tree, "read", unseen)
        with pytest.raises(ApiError) as caught:
            retry(daemon, "y/big")
        daemon.turn(WakeUpReason.TIMER)
    assert caught.value.message == "nothing is decided yet: cannot read (see the kernel's log)"
    assert "keeps the request until" in caught.value.hint
    assert logged(daemon, "pod_refused") == 1
    daemon.turn(WakeUpReason.TIMER)
    daemon.turn(WakeUpReason.TIMER)
    assert logged(daemon, "pod_refused") == 2


def test_a_request_that_could_not_be_saved_stays_noted(daemon: Daemon) -> None:
    daemon.steps.fails = lambda _number, _call: errno.ENOSPC
    daemon.files.pods = daemon.files.pods[1:]
    with pytest.raises(ApiError, match=r"nothing is decided yet: .*No space left on device"):
        retry(daemon, "y/big")
    daemon.turn(WakeUpReason.TIMER)
    assert logged(daemon, "pod_refused") == 1
    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    assert logged(daemon, "pod_refused") == 2


@pytest.mark.parametrize(
    "silent", [PodSource(is_blind=True), PodSource(misspelt=frozenset({"x/big", "y/big"}))], ids=["blind", "misspelt"]
)
@pytest.mark.parametrize(("name", "event"), [("y/big", "pod_refused"), ("x/big", "change_refused")])
def test_a_retry_stays_noted_while_nobody_knows_what_the_manifest_is(
    daemon: Daemon, silent: PodSource, name: str, event: str
) -> None:
    small, large = daemon.files.pods
    daemon.files.pods = (replace(small, containers=pod("big", app(cpu="98")).containers), large)
    daemon.rest()
    assert logged(daemon, event) == 1
    daemon.files.look_again = silent
    with pytest.raises(ApiError, match=r"nothing is decided yet: manifest .* cannot be read or is invalid"):
        retry(daemon, name)
    daemon.rest()
    assert logged(daemon, event) == 1
    daemon.files.look_again = None
    daemon.rest()
    daemon.rest()
    assert logged(daemon, event) == 2


def test_what_is_noted_is_about_pods_that_are_there(daemon: Daemon) -> None:
    daemon.files.look_again = PodSource(is_blind=True)
    for _ in range(3):
        with pytest.raises(ApiError, match="nothing is decided yet"):
            retry(daemon, "y/big")
    (noted,) = daemon.agent.requests.take()
    assert (noted.retried, noted.released) == ({"uid-y"}, frozenset())
    daemon.files.look_again, daemon.files.pods = None, daemon.files.pods[:1]
    daemon.rest()
    assert daemon.agent.requests.take() == ()


def test_many_that_wait_for_a_turn_keep_nobody_else_waiting(daemon: Daemon) -> None:
    path = f"{daemon.directory}/{API_SOCKET}"
    with ThreadPoolExecutor(40) as pool:
        asked = [pool.submit(ask, daemon, "y/big") for _ in range(40)]
        with pytest.raises(NodeAgentError, match=r"already wait for the agent's next turn|too many connections"):
            next(as_completed(asked, 60)).result()
        with pytest.raises(ApiError, match="no configuration at /nonexistent"):
            call(path, "judge", config="/nonexistent")
        assert call(path, "state")["state"]
        while not all(one.done() for one in asked):
            if WakeUpReason.REQUEST in daemon.agent.wakeups.wait(0.01):
                daemon.turn(WakeUpReason.REQUEST)
    assert {one.result()["uid"] for one in asked if one.exception() is None} == {"uid-y"}


def test_nothing_to_release_is_answered_without_a_turn(daemon: Daemon) -> None:
    assert call(f"{daemon.directory}/{API_SOCKET}", "release", pods=["y/big"]) == {"released": []}
    assert daemon.agent.requests.take() == ()


@pytest.mark.parametrize("seconds", [0, 0.01, -1])
def test_a_release_waits_for_a_turn_no_longer_than_it_is_told(daemon: Daemon, seconds: float) -> None:
    asked = call(f"{daemon.directory}/{API_SOCKET}", "release", pods=["x/big"], waitSeconds=seconds)
    assert asked == {"released": ["uid-x"]}
    daemon.turn(WakeUpReason.REQUEST)
    (entry, _) = daemon.agent.state.entries
    assert entry.is_released


def test_who_went_away_is_answered_all_the_same(daemon: Daemon) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{daemon.directory}/{API_SOCKET}")
        client.sendall(b'{"op": "retry", "pod": "y/big"}\n')
        assert WakeUpReason.REQUEST in daemon.agent.wakeups.wait(60)
    daemon.turn(WakeUpReason.REQUEST)
    assert logged(daemon, "pod_refused") == 2
    retry(daemon, "y/big")
    assert logged(daemon, "pod_refused") == 3


def test_a_request_that_no_turn_takes_up_in_time_is_taken_up_later(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_operations, "MAX_TURN_SECONDS", 0.01)
    assert ask(daemon, "y/big")["uid"] == "uid-y"
    assert logged(daemon, "pod_refused") == 1
    daemon.turn(WakeUpReason.REQUEST)
    assert logged(daemon, "pod_refused") == 2


@pytest.mark.parametrize("is_taken", [False, True])
def test_an_agent_that_stops_answers_who_waits(daemon: Daemon, tmp_path: Path, is_taken: bool) -> None:
    elsewhere = tmp_path / "run"
    elsewhere.mkdir()
    config: Any = SimpleNamespace(runtime_directory=str(elsewhere), metrics_bind_address="", pod_resources_socket="")
    with ThreadPoolExecutor(1) as pool:
        with Publisher(daemon.agent, config, daemon.agent.edges.log):
            asked = pool.submit(call, f"{elsewhere}/{API_SOCKET}", "retry", timeout_seconds=60, pod="y/big")
            assert WakeUpReason.REQUEST in daemon.agent.wakeups.wait(60)
            if is_taken:  # by a turn that doesn't come to its end
                assert len(daemon.agent.requests.take()) == 1
        with pytest.raises(ApiError, match="the agent is stopping") as caught:
            asked.result(60)
    assert "systemctl start nodeagent" in caught.value.hint
    late = TurnRequest()
    daemon.agent.requests.put(late)
    with pytest.raises(NodeAgentError, match="the agent is stopping"):
        late.answer.result(0)


def test_an_answer_that_takes_for_ever_holds_no_decision_up(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def document(_: NodeView) -> dict[str, object]:
        asked.set()
        assert go_on.wait(60)
        return {}

    monkeypatch.setattr(api_operations, "view_document", document)
    client = threading.Thread(target=lambda: call(f"{tmp_path}/{API_SOCKET}", "state", timeout_seconds=60))
    client.start()
    assert asked.wait(60)
    daemon.files.pods = (*daemon.files.pods, pod("new", app(cpu="1")))
    daemon.rest()
    assert "new" in {each.name for each in daemon.agent.state.holding_pods()}
    assert client.is_alive(), "the serving thread was busy all the time"
    go_on.set()
    client.join(60)
    assert not client.is_alive()


def test_many_questions_about_one_state_spell_it_once(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelt: list[NodeView] = []
    monkeypatch.setattr(api_operations, "view_document", lambda view: (spelt.append(view), view_document(view))[1])
    encoded: list[object] = []
    monkeypatch.setattr(local_api, "format_result", lambda result: (encoded.append(result), format_result(result))[1])
    answers = [call(f"{tmp_path}/{API_SOCKET}", "state") for _ in range(20)]
    assert all(answer == answers[0] for answer in answers)
    assert spelt == [daemon.agent.view]
    assert len(encoded) == 1, "which holds the interpreter, and so the deciding thread"
    daemon.turn()
    assert call(f"{tmp_path}/{API_SOCKET}", "state")["state"] == answers[0]["state"]
    assert len(spelt) == 1, "nothing has changed"
    daemon.turn(WakeUpReason.START)
    assert call(f"{tmp_path}/{API_SOCKET}", "state")["state"] == answers[0]["state"]
    assert len(spelt) == 2


def test_a_configuration_that_could_not_be_taken_over_is_refused_and_nothing_is_taken_over(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = daemon.agent.node
    (tmp_path / "config.yaml").write_text("")

    def judged(**config: Any) -> Any:
        after = replace(before, config=replace(before.config, **config))
        monkeypatch.setattr(api_operations, "load_node", lambda _: after)
        return call(f"{tmp_path}/{API_SOCKET}", "judge", config=f"{tmp_path}/config.yaml")

    assert judged(max_pods=7) == {"config": f"{tmp_path}/config.yaml"}
    with pytest.raises(ApiError, match="changed fields need a restart: static_pod_path"):
        judged(static_pod_path="/elsewhere")
    with pytest.raises(
        ApiError, match="the present allocations do not fit the new configuration: the policies change from"
    ):
        judged(placement=replace(before.config.placement, cpu_manager_policy="none"))
    monkeypatch.undo()
    daemon.agent.wakeups.wait(0)
    with pytest.raises(ApiError, match="no configuration at /nonexistent"):
        call(f"{tmp_path}/{API_SOCKET}", "judge", config="/nonexistent")
    assert WakeUpReason.CONFIGURATION in daemon.agent.wakeups.wait(0), "the agent looks at its own file at once"
    assert daemon.agent.node is before


def test_a_reload_is_answered_after_the_turn_that_follows_it(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_operations, "load_node", lambda _: daemon.agent.node)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(call, f"{tmp_path}/{API_SOCKET}", "judge", config="/its/own", apply=True)
        reasons = frozenset[WakeUpReason]()
        while WakeUpReason.RELOAD not in reasons:
            reasons |= daemon.agent.wakeups.wait(1)
        assert not asked.done()
        daemon.turn()
        assert asked.result() == {"config": "/its/own"}
