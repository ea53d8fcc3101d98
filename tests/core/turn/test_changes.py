"""Changed manifests: what runs ends for its successor if that fits, and runs on if it doesn't (D7). Each turn is judged by the model."""

import pytest
from msgspec.structs import replace

from nodeagent.core.model.pod import Pod
from nodeagent.core.model.refusals import RESIZE_INFEASIBLE
from nodeagent.core.model.state import Origin, Phase, PodEntry
from nodeagent.core.turn.pod_sources import Manifest
from nodeagent.core.turn.world import EventKind
from tests.support.node_model import Agent, Machine, started
from tests.support.pods import app, job, manifests, pod
from tests.support.world import SMALL, node

NODE = node(SMALL)
"""8 CPUs, of which CPU 0 is reserved: 7 can be exclusive."""
BIG, BIGGER = pod("a", app(cpu="400"), uid="big"), pod("a", app(cpu="500"), uid="bigger")


def begin(*pods: Pod) -> tuple[Machine, Agent]:
    return started(NODE, *pods)


def entry(agent: Agent, uid: str = "") -> PodEntry:
    return next(e for e in agent.state.entries if uid in {"", e.pod.uid})


def refused(agent: Agent) -> list[tuple[str, str]]:
    """The changes refused so far: the pod, and why."""
    return [(event.pod.uid, str(dict(event.fields)["reason"])) for event in agent.reported(EventKind.CHANGE_REFUSED)]


def test_a_changed_manifest_that_cannot_be_admitted_leaves_the_pod_as_it_is() -> None:
    machine, agent = begin(pod("a", app(cpu="2")))
    before = agent.state.promises
    agent.want(BIG)
    agent.settle()
    agent.restart()
    agent.settle()
    assert (entry(agent).pod.uid, entry(agent).phase) == ("uid-a", Phase.RUNNING)
    assert agent.state.promises == before
    assert machine.signals == []
    assert refused(agent) == [("uid-a", "OutOfcpu")], "tried once, and not again by a restart"
    change = entry(agent).refused_change
    assert change is not None
    assert change.pod == BIG
    assert "requested: 400000" in change.refusal.message


def test_a_refused_change_is_tried_again_when_it_changes_and_on_request_alone() -> None:
    beside = pod("b", app(cpu="5"))
    machine, agent = begin(pod("a", app(cpu="1")), beside)
    larger = pod("a", app(cpu="4"), uid="larger")
    agent.wanted = manifests(BIG, beside)
    agent.settle()
    agent.wanted = manifests(BIGGER, beside)
    agent.settle()
    agent.wanted = manifests(larger, beside)
    agent.settle()
    agent.want(larger)
    agent.settle()
    assert entry(agent).pod.uid == "uid-a", "room alone changes nothing: a refusal is final"
    assert refused(agent) == [("uid-a", "OutOfcpu")] * 3
    agent.retried = frozenset({"uid-a"})
    agent.settle()
    assert [(e.pod.uid, e.phase) for e in agent.state.entries] == [("larger", Phase.RUNNING)]
    assert entry(agent).refused_change is None
    assert len(refused(agent)) == 3
    assert machine.running_containers() == ("podlarger/app",)


def test_a_retry_that_changes_nothing_is_reported_each_time() -> None:
    machine, agent = begin(pod("a", app(cpu="2")))
    agent.want(BIG)
    agent.settle()
    machine.now_ms += 1
    agent.retried = frozenset({"uid-a"})
    agent.settle()
    assert refused(agent) == [("uid-a", "OutOfcpu")] * 2


def test_a_refused_change_that_is_taken_back_is_forgotten() -> None:
    small = pod("a", app(cpu="2"))
    machine, agent = begin(small)
    agent.want(BIG)
    agent.settle()
    agent.want(small)
    agent.settle()
    assert entry(agent).refused_change is None
    agent.want(BIG)
    agent.settle()
    assert len(refused(agent)) == 2, "it is another change then"
    assert len(machine.starts) == 1


@pytest.mark.parametrize(("name", "reason"), [("a", RESIZE_INFEASIBLE), ("renamed", "OutOfcpu")])
def test_the_file_of_a_refused_change_may_be_renamed(name: str, reason: str) -> None:
    change = replace(BIG, name=name, uid="uid-a")
    machine, agent = begin(pod("a", app(cpu="2")))
    agent.want(change)
    agent.settle()
    agent.wanted = (Manifest(change, Origin("z.yaml")),)
    agent.settle()
    assert entry(agent).origin.name == "z.yaml"
    agent.wanted, agent.unreadable = (), frozenset({"z.yaml"})
    agent.settle()
    agent.restart()
    agent.settle()
    assert machine.running_containers() == ("poduid-a/app",), "it is the new file that can't be read"
    assert refused(agent) == [("uid-a", reason)], "a new name is no new change"


def test_a_refused_change_whose_file_is_renamed_counts_before_another_file_of_its_name() -> None:
    machine, agent = begin(pod("a", app(cpu="2")))
    agent.want(BIG)
    agent.settle()
    stray = Manifest(pod("a", app(cpu="3"), uid="stray"), Origin("a-backup.yaml"))
    agent.wanted = (stray, Manifest(BIG, Origin("z.yaml")))
    agent.settle()
    assert machine.running_containers() == ("poduid-a/app",)
    assert entry(agent).origin.name == "z.yaml"


def test_a_pod_whose_changed_manifest_was_refused_ends_with_its_manifest() -> None:
    _, agent = begin(pod("a", app(cpu="2")))
    agent.want(BIG)
    agent.settle()
    agent.want()
    agent.settle()
    assert agent.state.entries == ()


def test_what_was_refused_as_a_change_is_decided_on_when_the_pod_has_finished() -> None:
    machine, agent = begin(job("a", app(cpu="2")))
    agent.want(BIG)
    agent.rest()
    machine.exit(machine.run_of("app"))
    agent.turn()
    assert agent.last.wake_at_ms == machine.now_ms, "at once"
    agent.rest()
    (left,) = agent.state.entries
    assert (left.pod.uid, left.refusal and left.refusal.reason, left.refused_change) == ("big", "OutOfcpu", None)


@pytest.mark.parametrize("uid", ["uid-a", "other"])
def test_what_was_refused_as_a_change_comes_back_by_hand_when_the_pod_was_released(uid: str) -> None:
    machine, agent = begin(pod("a", app(cpu="4")), pod("b", app(cpu="2")))
    larger, beside = pod("a", app(cpu="6"), uid=uid), pod("b", app(cpu="2"))
    agent.want(larger, beside)
    agent.settle()
    agent.released = frozenset({"uid-a", "uid-b"})
    agent.settle()
    agent.restart()
    agent.settle()
    reasons = {e.pod.uid: e.refusal and e.refusal.reason for e in agent.state.entries}
    assert reasons == {uid: "Released", "uid-b": "Released"}, "there is room for it now, and nobody has asked for it"
    machine.now_ms += 1
    agent.retried = frozenset({uid})
    agent.settle()
    assert agent.state.holding_pods() == (larger,)


def test_of_several_changes_at_once_those_are_followed_that_fit_whatever_ends_first() -> None:
    machine, agent = begin(pod("a", app(cpu="3")), pod("b", app(cpu="3")))
    agent.want(pod("a", app(cpu="4"), uid="a2"), pod("b", app(cpu="4"), uid="b2"))
    agent.settle()
    assert [e.pod.uid for e in agent.state.entries] == ["uid-b", "a2"], (
        "there is room for the larger one of one of them"
    )
    assert refused(agent) == [("uid-b", "OutOfcpu")]
    agent.want(pod("a", app(cpu="3"), uid="a3"), pod("b", app(cpu="4"), uid="b3"))
    agent.settle()
    assert [e.pod.uid for e in agent.state.entries] == ["uid-b", "a3"], (
        "what another is about to give back is not there yet"
    )
    assert machine.running_containers() == ("poda3/app", "poduid-b/app")


def test_a_change_makes_no_room_for_others_that_come_with_it() -> None:
    _, agent = begin(pod("b", app(cpu="4")))
    agent.want(pod("a", app(cpu="2")), pod("b", app(cpu="6"), uid="larger"))
    agent.settle()
    assert [e.pod.uid for e in agent.state.entries] == ["uid-b", "uid-a"]
    assert refused(agent) == [("uid-b", "OutOfcpu")]


def test_a_change_fits_what_a_change_before_it_is_about_to_take() -> None:
    """The second comes while the first is still ending, and fits only as long as the first is as it was."""
    machine, agent = begin(pod("a", app(cpu="2")), pod("b", app(cpu="2")))
    machine.stubborn = {"app"}
    for group in machine.groups.values():
        group.processes = [replace(process, is_stubborn=True) for process in group.processes]
    larger = pod("a", app(cpu="4"), uid="a2")
    agent.want(larger, pod("b", app(cpu="2")))
    agent.turn()
    assert entry(agent, "uid-a").deleting_since_ms is not None
    agent.want(larger, pod("b", app(cpu="4"), uid="b2"))
    agent.settle()
    assert [e.pod.uid for e in agent.state.entries] == ["uid-b", "a2"]
    assert refused(agent) == [("uid-b", "OutOfcpu")]


def test_a_trial_moves_no_metric() -> None:
    _, agent = begin(pod("a", app(cpu="2")))
    agent.want(BIG)
    agent.turn()
    assert agent.last.deltas == ()
