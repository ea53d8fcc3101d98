"""What is to be done with processes: a table of (status, run, cgroup) → action, and that doing it again is harmless."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from nodeagent.core.cgroups.container_placement import ContainerPlacement
from nodeagent.core.model.cgroup import ObservedCgroup
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Container, QosClass
from nodeagent.core.model.state import (
    ContainerStatus,
    Exit,
    NodeState,
    Origin,
    Phase,
    PodEntry,
    run_id,
)
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.turn.actions import (
    Action,
    Forget,
    KillCgroup,
    KillMain,
    Launch,
    Terminate,
    TerminateAll,
    list_actions,
)
from nodeagent.core.turn.lifecycle import Run
from nodeagent.core.turn.world import World
from tests.support.pods import app, pod
from tests.support.world import START_MS, empty_state, node

NODE = node()
PATH = "poduid-a/app"
PLACEMENT = ContainerPlacement(CpuSet.of(1), CpuSet(), NumaSet.of(0))
ENDED = Exit(START_MS, code=1)


def entry_of(status: ContainerStatus, container: Container | None = None) -> PodEntry:
    return PodEntry(
        pod("a", container or app()),
        qos=QosClass.GUARANTEED,
        origin=Origin("a.yaml"),
        decided_at_ms=START_MS,
        containers=(status,),
    )


def state_of(*entries: PodEntry) -> NodeState:
    return replace(empty_state(NODE), entries=entries)


def observed(*, populated: bool) -> dict[str, ObservedCgroup]:
    there = ObservedCgroup(PATH, frozenset(), frozenset(), (), None, None, is_populated=populated, is_frozen=False)
    return {PATH: there}


def decide(
    state: NodeState,
    *,
    runs: Mapping[str, Run] | None,
    populated: bool,
    ready: bool = True,
    signalled: frozenset[str] = frozenset(),
    now_ms: int = START_MS,
) -> list[Action]:
    world = World(
        NODE.config,
        NODE.managers,
        NODE.allocatable,
        (),
        runs=runs,
        observed=observed(populated=populated),
        now_ms=now_ms,
    )
    return list(list_actions(state, world, frozenset({PATH}) if ready else frozenset(), {PATH: PLACEMENT}, signalled))


STARTED = ContainerStatus("app", attempt=1)
RUNNING = ContainerStatus("app", attempt=1, started_at_ms=START_MS)
STOPPING = replace(RUNNING, stop_by_ms=START_MS + 5000)
NEW = ContainerStatus("app")
OVER = ContainerStatus("app", attempt=1, started_at_ms=START_MS, exit=ENDED)
ID = run_id(entry_of(STARTED), STARTED)
SLOT_ID = run_id(entry_of(NEW), NEW)
ALIVE = {ID: Run(ID, START_MS, pid=7)}
DEAD = {ID: Run(ID, START_MS, exit=ENDED)}
LAUNCH = Launch(ID, entry_of(STARTED), app(), PATH, PLACEMENT)


@pytest.mark.parametrize(
    ("status", "runs", "populated", "expected"),
    [
        pytest.param(NEW, {}, False, [], id="not decided on: nothing"),
        pytest.param(STARTED, {}, False, [LAUNCH], id="decided, unknown to the launcher: launch"),
        pytest.param(STARTED, ALIVE, True, [], id="runs"),
        pytest.param(STARTED, {}, True, [KillCgroup(PATH)], id="whoever is there before the start goes"),
        pytest.param(NEW, {}, True, [KillCgroup(PATH)], id="also before it is decided on"),
        pytest.param(RUNNING, DEAD, True, [KillCgroup(PATH)], id="the main process left others behind"),
        pytest.param(OVER, DEAD, False, [Forget((ID,))], id="its end is in the state: the launcher may forget it"),
        pytest.param(OVER, {}, False, [], id="forgotten"),
        pytest.param(RUNNING, DEAD, False, [], id="its end is not in the state: the launcher must not forget it"),
        pytest.param(STOPPING, ALIVE, True, [Terminate(ID)], id="stopping: asked"),
        pytest.param(STOPPING, {}, False, [], id="stopping, gone"),
        pytest.param(
            replace(STARTED, stop_by_ms=START_MS + 5000), {}, False, [], id="stopping before the launch: never launched"
        ),
        pytest.param(STOPPING, DEAD, True, [KillCgroup(PATH)], id="stopping: the main process has ended, others not"),
        pytest.param(replace(RUNNING, stop_by_ms=START_MS), ALIVE, True, [KillCgroup(PATH)], id="the grace is over"),
        pytest.param(
            replace(RUNNING, stop_by_ms=START_MS),
            ALIVE,
            False,
            [KillMain(ID)],
            id="the grace is over, it has left its cgroup",
        ),
        pytest.param(replace(RUNNING, stop_by_ms=START_MS), DEAD, False, [], id="the grace is over, but it is gone"),
        pytest.param(STOPPING, ALIVE, False, [Terminate(ID)], id="stopping: it has left its cgroup"),
    ],
)
def test_a_container_with_a_command(
    status: ContainerStatus, runs: Mapping[str, Run], expected: list[Action], *, populated: bool
) -> None:
    assert decide(state_of(entry_of(status)), runs=runs, populated=populated) == expected


@pytest.mark.parametrize(
    ("status", "populated", "expected"),
    [
        pytest.param(NEW, False, [], id="empty"),
        pytest.param(NEW, True, [], id="entered: that is what it is for"),
        pytest.param(
            replace(NEW, stop_by_ms=START_MS + 1), True, [TerminateAll(SLOT_ID, PATH)], id="stopping: all are asked"
        ),
        pytest.param(replace(NEW, stop_by_ms=START_MS), True, [KillCgroup(PATH)], id="the grace is over"),
        pytest.param(replace(NEW, stop_by_ms=START_MS), False, [], id="gone"),
    ],
)
def test_a_container_without_a_command(status: ContainerStatus, expected: list[Action], *, populated: bool) -> None:
    state = state_of(entry_of(status, app(command=())))
    assert decide(state, runs={}, populated=populated) == expected


def test_nothing_is_launched_where_the_cgroup_is_not_ready() -> None:
    assert decide(state_of(entry_of(STARTED)), runs={}, populated=False, ready=False) == []


def test_nothing_is_done_while_the_launcher_does_not_answer() -> None:
    late = entry_of(replace(RUNNING, stop_by_ms=START_MS))
    assert decide(state_of(late), runs=None, populated=True) == []


@pytest.mark.parametrize(
    ("status", "container", "target"),
    [(STOPPING, app(), ID), (replace(NEW, stop_by_ms=START_MS + 1), app(command=()), SLOT_ID)],
)
def test_one_sigterm_is_enough(status: ContainerStatus, container: Container, target: str) -> None:
    state = state_of(entry_of(status, container))
    assert decide(state, runs=ALIVE, populated=True, signalled=frozenset({target})) == []


def test_a_refused_pod_has_no_processes() -> None:
    refused = replace(entry_of(NEW), refusal=Waiting("OutOfcpu", "", START_MS), containers=())
    assert decide(state_of(refused), runs={}, populated=False) == []


def test_what_is_left_of_a_finished_pod_goes_and_nothing_of_it_is_launched() -> None:
    over = replace(entry_of(OVER), outcome=Phase.FAILED)
    assert decide(state_of(over), runs={}, populated=True) == [KillCgroup(PATH)]
    never_launched = replace(entry_of(STARTED), outcome=Phase.FAILED)
    assert decide(state_of(never_launched), runs={}, populated=False, ready=False) == []


def test_ends_of_no_pod_are_forgotten_and_what_still_runs_is_not() -> None:
    runs = {
        "x/c/1.1": Run("x/c/1.1", START_MS, exit=ENDED),
        "b/c/1.1": Run("b/c/1.1", START_MS, exit=ENDED),
        "y/c/1.1": Run("y/c/1.1", START_MS, pid=3),
    }
    assert decide(state_of(), runs=runs, populated=False) == [Forget(("b/c/1.1", "x/c/1.1"))]


def test_the_end_of_an_earlier_attempt_is_forgotten_beside_the_running_one() -> None:
    second = replace(RUNNING, attempt=2, last_exit=ENDED)
    its_id = run_id(entry_of(second), second)
    runs = DEAD | {its_id: Run(its_id, START_MS, pid=8)}
    assert decide(state_of(entry_of(second)), runs=runs, populated=True) == [Forget((ID,))]
