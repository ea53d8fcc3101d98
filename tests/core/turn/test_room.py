"""Pods that were refused for room come back when room is made, where the node says so. Each turn is judged by the model."""

from functools import partial

import pytest

from nodeagent.core.admission.managers import Admitted, Managers, Rejected
from nodeagent.core.model.config import RETRY_FOR_ROOM
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.pod import Pod
from nodeagent.core.model.promises import Promises
from nodeagent.core.model.refusals import RELEASED, RESIZE_DEFERRED, STATE_NOT_SAVED, WAITS_FOR_JOBS, WAITS_FOR_ROOM
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import RequestKind, Retry, Waiting
from nodeagent.core.turn.decision import admit_off_orphans
from nodeagent.core.turn.step import step
from nodeagent.core.turn.world import EventKind
from tests.support.node_model import Agent, started
from tests.support.pods import app, burstable, job, pod
from tests.support.world import SMALL, node

NODE = node(SMALL, config={"retry_refused": RETRY_FOR_ROOM})
"""8 CPUs, of which CPU 0 is reserved: 7 can be exclusive."""
FIRST, SECOND, THIRD = pod("first", app(cpu="6")), pod("second", app(cpu="4")), pod("third", app(cpu="3"))


def names(agent: Agent, kind: EventKind) -> list[str]:
    return [event.pod.name for event in agent.reported(kind)]


def entry(agent: Agent, name: str) -> PodEntry:
    return next(one for one in agent.state.entries if one.pod.name == name)


def test_refused_pods_come_back_in_the_order_of_their_arrival() -> None:
    machine, agent = started(NODE, FIRST)
    agent.want(FIRST, THIRD)
    agent.settle()
    machine.now_ms += 1000
    agent.want(FIRST, SECOND, THIRD)
    agent.settle()
    assert names(agent, EventKind.POD_REFUSED) == ["third", "second"]
    agent.want(SECOND, THIRD)
    agent.settle()
    assert names(agent, EventKind.POD_ADMITTED) == ["first", "third", "second"]
    assert all(one.is_active for one in agent.state.entries)


def test_what_is_refused_again_is_reported_once_and_keeps_its_place() -> None:
    small = pod("small", app(cpu="1"))
    _, agent = started(NODE, FIRST, small)
    agent.want(FIRST, small, SECOND)
    agent.settle()
    since = entry(agent, "second").refusal
    assert since is not None
    agent.want(FIRST, SECOND)
    agent.settle()
    refusal = entry(agent, "second").refusal
    assert refusal is not None
    assert refusal.at_ms == since.at_ms
    assert refusal.message != since.message, "as much as is free now"
    assert names(agent, EventKind.POD_REFUSED) == ["second"]


def test_a_retry_keeps_the_place_among_those_that_wait() -> None:
    machine, agent = started(NODE, FIRST)
    agent.want(FIRST, SECOND)
    agent.settle()
    machine.now_ms += 1000
    agent.want(FIRST, SECOND, pod("other", app(cpu="4")))
    agent.settle()
    since = entry(agent, "second").refusal
    machine.now_ms += 1000
    agent.retried = frozenset({SECOND.uid})
    agent.settle()
    assert (entry(agent, "second").refusal, names(agent, EventKind.POD_REFUSED)) == (
        since,
        ["second", "other", "second"],
    )
    agent.want(SECOND, pod("other", app(cpu="4")))
    agent.settle()
    assert names(agent, EventKind.POD_ADMITTED) == ["first", "second"]


def test_a_pod_that_finishes_makes_room_too() -> None:
    ends = job("ends", app(cpu="6"))
    machine, agent = started(NODE, ends)
    agent.want(ends, SECOND)
    agent.settle()
    assert entry(agent, "second").refusal is not None
    machine.exit(machine.run_of("app"), 0)
    agent.settle()
    assert entry(agent, "second").is_active


BIG = app("app", resources=burstable("5"))


@pytest.mark.parametrize(
    ("before", "after", "waits", "max_pods"),
    [
        (pod("first", BIG), None, pod("second", BIG), 110),
        (pod("first", BIG), pod("first", app("app", resources=burstable("1"))), pod("second", BIG), 110),
        (pod("first", app(cpu="3500m")), None, pod("second", app(cpu="4")), 110),
        (pod("first"), None, pod("second"), 1),
    ],
    ids=["removed", "resized", "fractional", "pods"],
)
def test_a_pod_without_exclusive_cpus_makes_room_too(before: Pod, after: Pod | None, waits: Pod, max_pods: int) -> None:
    _, agent = started(node(SMALL, max_pods=max_pods, config={"retry_refused": RETRY_FOR_ROOM}), before)
    agent.want(before, waits)
    agent.settle()
    assert entry(agent, "second").refusal is not None
    agent.want(*([] if after is None else [after]), waits)
    agent.settle()
    assert entry(agent, "second").is_active


def test_a_finished_pod_without_exclusive_cpus_makes_room_at_once() -> None:
    ends, waits = job("ends", BIG), pod("second", BIG)
    machine, agent = started(NODE, ends)
    agent.want(ends, waits)
    agent.settle()
    assert entry(agent, "second").refusal is not None
    machine.exit(machine.run_of("app"), 0)
    agent.settle()
    assert entry(agent, "second").is_active


@pytest.mark.parametrize("how", ["blind", "partial", "unreadable"])
def test_room_that_was_made_while_the_manifest_could_not_be_read_is_not_forgotten(how: str) -> None:
    ends = job("ends", app(cpu="6"))
    machine, agent = started(NODE, ends)
    agent.want(ends, SECOND)
    agent.settle()
    agent.want(ends)
    agent.is_blind, agent.is_partial = how == "blind", how == "partial"
    agent.unreadable = frozenset({"second.yaml"} if how == "unreadable" else ())
    machine.exit(machine.run_of("app"), 0)
    agent.settle()
    assert entry(agent, "second").refusal is not None
    assert agent.last.wake_at_ms is None, "a request that can't be decided keeps nobody awake"
    agent.want(ends, SECOND)
    agent.is_blind = agent.is_partial = False
    agent.unreadable = frozenset()
    agent.settle()
    assert entry(agent, "second").is_active


def test_room_that_was_made_while_nothing_could_be_saved_is_not_forgotten() -> None:
    _, agent = started(NODE, FIRST)
    agent.want(FIRST, SECOND)
    agent.settle()
    agent.want(SECOND)
    agent.disk_is_full = True
    for _ in range(5):
        agent.turn()
    agent.disk_is_full = False
    agent.settle()
    assert entry(agent, "second").is_active


def test_nothing_is_decided_again_without_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    grows = pod("grows", app(cpu="1"))
    _, agent = started(NODE, FIRST, grows)
    larger = pod("grows", app(cpu="4"))
    agent.want(FIRST, larger, SECOND)
    agent.settle()
    change = entry(agent, "grows").change_refusal
    assert change is not None
    assert change.reason == RESIZE_DEFERRED
    decided: list[object] = []

    def refuse(*arguments: object) -> None:
        decided.append(arguments)

    monkeypatch.setattr("nodeagent.core.turn.resize.resize_pod", refuse)
    monkeypatch.setattr("nodeagent.core.turn.admit.decide_pod", refuse)
    for _ in range(3):
        agent.turn()
    assert decided == []
    monkeypatch.undo()
    agent.want(larger, SECOND)
    agent.settle()
    assert entry(agent, "grows").pod == larger


def test_a_retry_is_measured_like_a_first_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    _, agent = started(NODE, FIRST)
    agent.want(FIRST, SECOND)
    agent.settle()
    decided: set[str] = set()

    def decide(managers: Managers, promises: Promises, pod: Pod, orphans: CpuSet) -> Admitted | Rejected:
        decided.add(pod.name)
        return admit_off_orphans(managers, promises, pod, orphans)

    monkeypatch.setattr("tests.support.node_model.step", partial(step, decide=decide))
    agent.want(SECOND)
    agent.settle()
    assert decided == {"second"}


def test_otherwise_it_stays_refused_as_by_kubelet() -> None:
    _, agent = started(node(SMALL), FIRST)
    agent.want(FIRST, SECOND)
    agent.settle()
    agent.want(SECOND)
    agent.settle()
    assert entry(agent, "second").refusal is not None


def test_each_refusal_says_what_lets_it_be_tried_again() -> None:
    _, agent = started(NODE, FIRST)
    agent.want(FIRST, SECOND)
    agent.settle()
    ((kind, waiting),) = entry(agent, "second").waiting
    assert (kind, waiting.retries(kind)) == (RequestKind.POD, (Retry.MANIFEST, Retry.REQUEST))
    assert waiting.retries(kind, requests_devices=True, for_room=True)[2:] == (Retry.RESOURCE, Retry.ROOM)
    agent.want(pod("first", app(cpu="8"), uid="larger"), SECOND)
    agent.settle()
    ((kind, waiting),) = entry(agent, "first").waiting
    assert (kind, waiting.retries(kind)) == (RequestKind.CHANGE, (Retry.MANIFEST, Retry.REQUEST))


@pytest.mark.parametrize(
    ("reason", "kind", "retries"),
    [
        (STATE_NOT_SAVED, RequestKind.POD, (Retry.DISK,)),
        (STATE_NOT_SAVED, RequestKind.CHANGE, (Retry.DISK,)),
        (STATE_NOT_SAVED, RequestKind.RESUME, (Retry.DISK,)),
        (RELEASED, RequestKind.POD, (Retry.MANIFEST, Retry.REQUEST)),
        (RESIZE_DEFERRED, RequestKind.CHANGE, (Retry.MANIFEST, Retry.REQUEST, Retry.ROOM)),
        ("OutOfcpu", RequestKind.RESUME, (Retry.ROOM,)),
        ("OutOfcpu", RequestKind.CONTAINER, (Retry.MANIFEST, Retry.REQUEST, Retry.ROOM)),
        (WAITS_FOR_ROOM, RequestKind.POD, (Retry.ROOM, Retry.RESOURCE)),
        (WAITS_FOR_JOBS, RequestKind.POD, (Retry.QUEUE, Retry.ROOM, Retry.RESOURCE)),
        ("PodNotKnown", RequestKind.CONTAINER, (Retry.OWNER, Retry.REQUEST)),
    ],
)
def test_what_waits_is_tried_again_by_its_reason(reason: str, kind: RequestKind, retries: tuple[Retry, ...]) -> None:
    assert Waiting(reason, "no", 1).retries(kind, requests_devices=True, for_room=True) == retries
