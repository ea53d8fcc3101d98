"""Which saved states the next start comes to by itself, and how entries are replaced."""

import pytest
from msgspec.structs import replace

from nodeagent.core.model.pod import QosClass, RestartPolicy
from nodeagent.core.model.promises import Hint, PodPromises, Promises, UnrecoveredPod, with_pod
from nodeagent.core.model.state import (
    ContainerStatus,
    Exit,
    NodeState,
    Origin,
    PodEntry,
    RefusedChange,
    has_only_starts,
    is_decided_again,
)
from nodeagent.core.model.waiting import Waiting
from tests.support.pods import app, pod

HELD = PodPromises(hints=(("app", Hint()),))
MORE = PodPromises(hints=(("app", Hint(preferred=True)),))


def entry(name: str, status: ContainerStatus | None = None, **more: object) -> PodEntry:
    made = PodEntry(pod(name, app("app", "1")), QosClass.GUARANTEED, Origin(f"{name}.yaml"), 1)
    return replace(made, containers=(status or ContainerStatus("app", attempt=1),), **more)


def state(*entries: PodEntry, held: PodPromises = HELD) -> NodeState:
    promises = Promises()
    for one in entries:
        promises = with_pod(promises, one.pod.uid, held)
    return NodeState(promises, entries)


STARTED = ContainerStatus("app", attempt=1, started_at_ms=5)
ENDED = ContainerStatus("app", attempt=1, started_at_ms=5, exit=Exit(9, 0))
A, B = entry("a"), entry("b")
ENDING = entry("b", deleting_since_ms=7)
REFUSAL = Waiting("Reason", "message", 1)
REFUSED = entry("b", refusal=REFUSAL)
ONCE, ONCE_STARTED = (
    replace(each, pod=replace(each.pod, restart_policy=RestartPolicy.NEVER)) for each in (B, entry("b", STARTED))
)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(state(A), state(A), True, id="nothing"),
        pytest.param(state(A, B), state(A, ENDING), True, id="a pod is to end"),
        pytest.param(state(A, ENDING), state(A, replace(ENDING, containers=(ENDED,))), True, id="and has exited"),
        pytest.param(state(A, ENDING), state(A), True, id="and is gone"),
        pytest.param(state(A, B), state(A, entry("b", STARTED)), True, id="it is started"),
        pytest.param(state(A), state(A, B), False, id="a pod comes"),
        pytest.param(state(A, B), state(A), False, id="it goes at once"),
        pytest.param(state(A, REFUSED), state(A), False, id="a refused pod goes"),
        pytest.param(state(A, REFUSED), state(A, B), False, id="a refused pod is admitted"),
        pytest.param(state(A, B), state(A, replace(ENDING, is_released=True)), False, id="it is released"),
        pytest.param(state(A, replace(ENDING, is_released=True)), state(A, REFUSED), False, id="and stays"),
        pytest.param(state(A, B), state(A, entry("b", ENDED)), False, id="it exits by itself"),
        pytest.param(state(A, ONCE), state(A, ONCE_STARTED), False, id="one that runs once is started"),
        pytest.param(
            state(A, B),
            state(A, replace(B, refused_change=RefusedChange(A.pod, REFUSAL))),
            False,
            id="a change is refused",
        ),
        pytest.param(state(A, B), state(A, B, held=MORE), False, id="it holds others"),
        pytest.param(
            state(A),
            replace(state(A), promises=replace(state(A).promises, unrecovered=(UnrecoveredPod("u", HELD),))),
            False,
            id="records are found",
        ),
    ],
)
def test_only_what_the_next_start_decides_again(before: NodeState, after: NodeState, *, expected: bool) -> None:
    assert is_decided_again(before, after) is expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(state(A, B), state(A, entry("b", STARTED)), True, id="one is started"),
        pytest.param(state(A, B), state(entry("a", STARTED), entry("b", STARTED)), True, id="two are started"),
        pytest.param(state(A, B), state(A, entry("b", ENDED)), False, id="it has exited, too"),
        pytest.param(state(A, B), state(A, ENDING), False, id="a pod is to end"),
        pytest.param(state(A, ENDING), state(entry("a", STARTED)), False, id="one is started, and another is gone"),
        pytest.param(state(A), state(entry("a", STARTED), B), False, id="one is started, and another comes"),
        pytest.param(state(A, ONCE), state(A, ONCE_STARTED), False, id="one that runs once is started"),
        pytest.param(state(A, B), state(A, entry("b", STARTED), held=MORE), False, id="it holds others"),
    ],
)
def test_only_starts_need_no_save(before: NodeState, after: NodeState, *, expected: bool) -> None:
    assert has_only_starts(before, after) is expected


def test_many_entries_are_replaced_in_place() -> None:
    """Entries of pods that the state doesn't know are left out, as `with_entry` does."""
    before = state(*(entry(name) for name in "abcd"))
    changed = [entry(name, STARTED) for name in "dbx"]
    one_by_one = before
    for one in changed:
        one_by_one = one_by_one.with_entry(one)
    assert before.with_entries(changed) == one_by_one != before
    assert before.with_entries([]) is before
