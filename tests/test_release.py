"""Pods that are ended by hand although their manifests are there: in order, with their grace period, and so that they stay ended."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from daemon_model import Daemon, Steps, watched
from node_model import Agent, CrashError, Machine, started
from nodeagent.core.refusals import RELEASED
from nodeagent.core.state import Phase
from nodeagent.daemon.publisher import API_SOCKET, Publisher
from nodeagent.daemon.startup import STATE_FILE
from nodeagent.edge.local_api_client import ApiError, call
from nodeagent.formats.node_state import decode_state
from nodeagent.formats.refusal_advice import next_step
from world import SMALL, app, job, node, pod, sidecar

NODE = node(SMALL)
WEB = pod("web", sidecar("proxy", "1"), app(cpu="2"))
OTHER = pod("other", app(cpu="1"))


def begin() -> tuple[Machine, Agent]:
    return started(NODE, WEB, OTHER)


def release(agent: Agent, *uids: str) -> None:
    agent.released = frozenset(uids or (e.pod.uid for e in agent.state.entries))
    agent.turn()


def phases(agent: Agent) -> dict[str, str]:
    return {e.pod.name: e.refusal.reason if e.refusal else e.phase.value for e in agent.state.entries}


# The decision


def test_a_released_pod_ends_in_order_and_is_refused_though_its_manifest_is_there() -> None:
    machine, agent = begin()
    release(agent, "uid-web")
    assert phases(agent) == {"web": "Terminating", "other": "Running"}
    assert [run.split("/")[:2] for run in agent.signalled] == [["uid-web", "app"]], "sidecars go last"
    agent.settle()
    assert phases(agent) == {"web": RELEASED, "other": "Running"}
    assert [name for event, name in agent.events() if event in {"pod_ending", "pod_released"}] == ["web", "web"]
    ended = [name for event, name in agent.events() if event == "container_exited"]
    assert ended == ["app", "proxy"]
    assert [run.split("/")[0] for run in machine.running()] == ["uid-other"]
    assert agent.state.promises.of_pod("uid-web").is_nothing
    assert not [path for path in machine.groups if "uid-web" in path]


def test_it_keeps_its_cpus_until_its_last_process_has_gone() -> None:
    machine, agent = begin()
    machine.groups["poduid-web/app"].processes[0].is_stubborn = True
    release(agent, "uid-web")
    agent.rest()
    assert phases(agent)["web"] == "Terminating"
    assert not agent.state.promises.of_pod("uid-web").is_nothing
    agent.settle()
    assert phases(agent)["web"] == RELEASED


def test_it_stays_ended_over_restarts_until_retry_or_another_manifest() -> None:
    machine, agent = begin()
    release(agent)
    agent.settle()
    machine.now_ms += 1
    agent.restart()
    agent.settle()
    assert phases(agent) == {"web": RELEASED, "other": RELEASED}
    agent.retried = frozenset({"uid-other"})
    agent.settle()
    assert phases(agent) == {"web": RELEASED, "other": "Running"}
    agent.want(replace(WEB, termination_grace_seconds=7), OTHER)
    agent.settle()
    assert phases(agent) == {"web": "Running", "other": "Running"}


def test_a_restart_in_the_middle_of_its_end_forgets_nothing() -> None:
    machine, agent = begin()
    machine.groups["poduid-web/app"].processes[0].is_stubborn = True
    release(agent, "uid-web")
    agent.restart()
    agent.settle()
    assert phases(agent)["web"] == RELEASED


def test_with_its_manifest_gone_or_changed_meanwhile_it_is_forgotten() -> None:
    for wanted, left in (((OTHER,), None), ((replace(WEB, uid="uid-new"), OTHER), "Running")):
        _, agent = begin()
        release(agent, "uid-web")
        agent.want(*wanted)
        agent.settle()
        assert phases(agent).get("web") == left


def test_one_that_is_ending_already_only_does_not_come_back() -> None:
    machine, agent = begin()
    machine.groups["poduid-web/app"].processes[0].is_stubborn = True
    agent.want(OTHER)
    agent.turn()
    since = next(e.deleting_since_ms for e in agent.state.entries if e.pod.name == "web")
    agent.want(WEB, OTHER)
    machine.now_ms += 1000
    release(agent, "uid-web")
    assert next(e.deleting_since_ms for e in agent.state.entries if e.pod.name == "web") == since
    agent.settle()
    assert phases(agent)["web"] == RELEASED


def test_it_needs_no_readable_manifest_directory() -> None:
    _, agent = begin()
    agent.is_blind = True
    release(agent, "uid-web")
    agent.settle()
    assert phases(agent) == {"web": RELEASED, "other": "Running"}


def test_pods_that_hold_nothing_stay_as_they_are() -> None:
    machine, agent = started(NODE, job("done", app(cpu="1")), pod("big", app(cpu="50")))
    machine.exit(machine.running()[0], 0)
    agent.settle()
    before = agent.state
    release(agent)
    assert agent.state == before
    assert phases(agent) == {"done": Phase.SUCCEEDED.value, "big": "OutOfcpu"}


def test_what_brings_it_back_is_said() -> None:
    assert next_step(RELEASED, "default/web").endswith("nodeagent retry default/web")


# The daemon


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    machine = Machine(NODE)
    daemon = Daemon(machine, tmp_path, steps=Steps())
    with watched(monkeypatch, machine, daemon.steps):
        daemon.files.pods = (WEB, OTHER)
        daemon.start()
        daemon.rest()
        config: Any = SimpleNamespace(runtime_directory=str(tmp_path), metrics_bind_address="")
        with Publisher(daemon.agent, config, daemon.agent.log):
            yield daemon


def ask(daemon: Daemon, **arguments: Any) -> Any:
    return call(f"{daemon.directory}/{API_SOCKET}", "release", **arguments)


def test_a_request_is_saved_before_anything_is_signalled(daemon: Daemon) -> None:
    assert ask(daemon, pods=["web"]) == {"released": ["uid-web"]}
    before = len(daemon.steps.done)
    daemon.turn()
    steps = daemon.steps.done[before:]
    assert steps.index(f"replace {STATE_FILE}") < min(i for i, step in enumerate(steps) if step.startswith("signal "))
    entry = decode_state((daemon.directory / STATE_FILE).read_bytes()).state.entry("uid-web")
    assert entry is not None
    assert entry.is_released
    daemon.rest()
    lines = [line["event"] for line in daemon.said() if line.get("pod") == "default/web"]
    assert lines[-1] == "pod_released"


def test_all_is_all_that_hold_something_and_twice_is_nothing_new(daemon: Daemon) -> None:
    assert ask(daemon, all=True) == {"released": ["uid-web", "uid-other"]}
    daemon.rest()
    assert ask(daemon, all=True) == {"released": []}
    assert ask(daemon, pods=["web", "default/other"]) == {"released": []}


@pytest.mark.parametrize("arguments", [{}, {"pods": []}, {"pods": "web"}, {"all": "yes"}])
def test_a_request_that_names_nobody_is_refused(daemon: Daemon, arguments: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="it was not said which pods"):
        ask(daemon, **arguments)


def test_one_wrong_name_releases_nobody(daemon: Daemon) -> None:
    with pytest.raises(ApiError, match="no pod 'wep' is known"):
        ask(daemon, pods=["web", "wep"])
    assert daemon.agent.releases.take() == frozenset()


def test_a_full_disk_keeps_no_pod_from_ending_and_is_told(daemon: Daemon) -> None:
    daemon.steps.fails = lambda _number, _call: 28
    ask(daemon, pods=["web"])
    daemon.turn()
    daemon.turn()
    entry = daemon.agent.state.entry("uid-web")
    assert entry is not None
    assert (entry.deleting_since_ms is not None, entry.is_released) == (True, True)
    daemon.steps.fails = lambda _number, _call: None
    daemon.rest()
    assert {e.pod.name: e.refusal and e.refusal.reason for e in daemon.agent.state.entries}["web"] == RELEASED


def test_a_process_that_dies_after_the_save_goes_on_where_it_was(daemon: Daemon) -> None:
    ask(daemon, pods=["web"])
    daemon.steps.dies_at = len(daemon.steps.done) + 12
    with pytest.raises(CrashError):
        daemon.rest()
    daemon.steps.dies_at = None
    daemon.start()
    daemon.rest()
    entry = daemon.agent.state.entry("uid-web")
    assert entry is not None
    assert entry.refusal is not None
    assert entry.refusal.reason == RELEASED
