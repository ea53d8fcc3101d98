"""What the running agent answers over its socket to those who name a pod."""

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.daemon import publisher
from nodeagent.daemon.publisher import API_SOCKET, Publisher
from nodeagent.edge import local_api
from nodeagent.edge.local_api_client import ApiError, call
from nodeagent.formats.node_view import NodeView, view_document
from nodeagent.formats.wire.api_messages import print_result
from tests.support.daemon_model import Daemon, Steps, watched
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
        config: Any = SimpleNamespace(runtime_directory=str(tmp_path), metrics_bind_address="")
        with Publisher(daemon.agent, config, daemon.agent.log) as publisher:
            publisher.listen()
            yield daemon


def retry(directory: Path, name: str) -> Any:
    return call(f"{directory}/{API_SOCKET}", "retry", pod=name)


def test_a_name_that_two_pods_have_is_refused_and_both_are_named(daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(ApiError) as caught:
        retry(tmp_path, "big")
    assert caught.value.message == "there are 2 pods 'big'"
    assert caught.value.hint.endswith(": x/big, y/big")
    assert daemon.agent.retries.take() == frozenset()


@pytest.mark.parametrize("name", ["y/big", "uid-y"])
def test_a_pod_named_in_full_is_decided_again(daemon: Daemon, tmp_path: Path, name: str) -> None:
    answer = retry(tmp_path, name)
    assert (answer["pod"], answer["uid"], answer["refusedBefore"]) == ("y/big", "uid-y", "OutOfcpu")
    assert daemon.agent.retries.take() == {"uid-y"}


def test_a_changed_manifest_that_was_refused_is_decided_again(daemon: Daemon, tmp_path: Path) -> None:
    small, large = daemon.files.pods
    changed = replace(small, containers=pod("big", app(cpu="98")).containers)
    daemon.files.pods = (changed, large)
    daemon.rest()
    answer = retry(tmp_path, "x/big")
    assert (answer["pod"], answer["uid"], answer["refusedBefore"]) == ("x/big", "uid-x", "OutOfcpu")
    assert daemon.agent.retries.take() == {"uid-x"}


def test_a_pod_that_runs_and_one_that_is_not_there_are_refused(daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="pod x/big is not refused"):
        retry(tmp_path, "x/big")
    with pytest.raises(ApiError, match="no pod 'bigg' is known") as caught:
        retry(tmp_path, "bigg")
    assert "did you mean" in caught.value.hint
    assert daemon.agent.retries.take() == frozenset()


def test_an_answer_that_takes_for_ever_holds_no_decision_up(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def document(_: NodeView) -> dict[str, object]:
        asked.set()
        assert go_on.wait(60)
        return {}

    monkeypatch.setattr(publisher, "view_document", document)
    client = threading.Thread(target=lambda: call(f"{tmp_path}/{API_SOCKET}", "state", timeout_seconds=60))
    client.start()
    assert asked.wait(60)
    daemon.files.pods = (*daemon.files.pods, pod("new", app(cpu="1")))
    daemon.rest()
    assert "new" in {each.name for each in daemon.agent.state.active_pods()}
    assert client.is_alive(), "the serving thread was busy all the time"
    go_on.set()
    client.join(60)
    assert not client.is_alive()


def test_many_questions_about_one_state_spell_it_once(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spelt: list[NodeView] = []
    monkeypatch.setattr(publisher, "view_document", lambda view: (spelt.append(view), view_document(view))[1])
    encoded: list[object] = []
    monkeypatch.setattr(local_api, "print_result", lambda result: (encoded.append(result), print_result(result))[1])
    answers = [call(f"{tmp_path}/{API_SOCKET}", "state") for _ in range(20)]
    assert all(answer == answers[0] for answer in answers)
    assert spelt == [daemon.agent.view]
    assert len(encoded) == 1, "which holds the interpreter, and so the deciding thread"
    daemon.turn()
    assert call(f"{tmp_path}/{API_SOCKET}", "state")["state"] == answers[0]["state"]
    assert len(spelt) == 2


def test_a_configuration_that_could_not_be_taken_over_is_refused_and_nothing_is_taken_over(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = daemon.agent.node
    (tmp_path / "config.yaml").write_text("")

    def judged(**config: Any) -> Any:
        after = replace(before, config=replace(before.config, **config))
        monkeypatch.setattr(publisher, "load_node", lambda _: after)
        return call(f"{tmp_path}/{API_SOCKET}", "judge", config=f"{tmp_path}/config.yaml")

    assert judged(max_pods=7) == {"config": f"{tmp_path}/config.yaml"}
    with pytest.raises(ApiError, match="changed fields need a restart: static_pod_path"):
        judged(static_pod_path="/elsewhere")
    with pytest.raises(ApiError, match="the promises made do not fit: the policies change from"):
        judged(placement=replace(before.config.placement, cpu_manager_policy="none"))
    monkeypatch.undo()
    with pytest.raises(ApiError, match="no configuration at /nonexistent"):
        call(f"{tmp_path}/{API_SOCKET}", "judge", config="/nonexistent")
    assert daemon.agent.node is before
