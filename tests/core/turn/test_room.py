"""Pods that were refused for room come back when room is made, where the node says so. Each turn is judged by the model."""

import pytest

from nodeagent.core.model.config import RETRY_FOR_ROOM
from nodeagent.core.model.refusals import RELEASED, RESIZE_DEFERRED, STATE_NOT_SAVED
from nodeagent.core.model.state import PodEntry
from nodeagent.core.model.waiting import RequestKind, Retry, Waiting
from nodeagent.core.turn.world import EventKind
from tests.support.node_model import Agent, started
from tests.support.pods import app, job, pod
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


def test_a_pod_that_finishes_makes_room_too() -> None:
    ends = job("ends", app(cpu="6"))
    machine, agent = started(NODE, ends)
    agent.want(ends, SECOND)
    agent.settle()
    assert entry(agent, "second").refusal is not None
    machine.exit(machine.run_of("app"), 0)
    agent.settle()
    assert entry(agent, "second").is_active


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
        (RELEASED, RequestKind.POD, (Retry.MANIFEST, Retry.REQUEST)),
        (RESIZE_DEFERRED, RequestKind.CHANGE, (Retry.MANIFEST, Retry.REQUEST, Retry.ROOM)),
        ("OutOfcpu", RequestKind.RESUME, (Retry.ROOM,)),
        ("OutOfcpu", RequestKind.CONTAINER, (Retry.MANIFEST, Retry.REQUEST)),
        ("PodNotKnown", RequestKind.CONTAINER, (Retry.OWNER, Retry.REQUEST)),
    ],
)
def test_what_waits_is_tried_again_by_its_reason(reason: str, kind: RequestKind, retries: tuple[Retry, ...]) -> None:
    assert Waiting(reason, "no", 1).retries(kind, requests_devices=True, for_room=True) == retries
