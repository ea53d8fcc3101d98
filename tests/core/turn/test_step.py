"""One turn's decision: identity, order, duplicates and refusals of pods (D7), who holds what until when (D11), room (D6)."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from nodeagent.core.admission.managers import initial
from nodeagent.core.admission.node_rules import isolation
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.model.demand import WhyShared
from nodeagent.core.model.pod import Container, Pod, ResourceRequirements, Resources, RestartPolicy
from nodeagent.core.model.quantity import Quantity
from nodeagent.core.model.state import (
    MANIFEST_DIRECTORY,
    ContainerStatus,
    Exit,
    NodeState,
    Origin,
    Phase,
    PodEntry,
    run_id,
    shift_times,
)
from nodeagent.core.model.violations import Invariant
from nodeagent.core.model.waiting import Waiting
from nodeagent.core.resources.cpu.holdings import default_set, exclusive_cpus, own_set_of
from nodeagent.core.turn.pod_sources import Manifest, PodSource, new_entry
from nodeagent.core.turn.step import step
from nodeagent.core.turn.world import EventKind, TurnEvent, World
from tests.support.node_model import Agent, Machine, started
from tests.support.pods import amounts, app, burstable, cgroup_only, init, job, manifests, pod
from tests.support.world import SMALL, START_MS, empty_state, node

NODE = node(SMALL)
"""8 CPUs, of which CPU 0 is reserved: 7 can be exclusive."""


def begin(*pods: Pod) -> tuple[Machine, Agent]:
    return started(NODE, *pods)


def names(agent: Agent) -> list[str]:
    return [e.pod.name for e in agent.state.entries]


def entry(agent: Agent, name: str = "a") -> PodEntry:
    return next(e for e in agent.state.entries if e.pod.name == name)


def refused(agent: Agent) -> dict[str, str]:
    return {e.pod.name: e.refusal.reason for e in agent.state.entries if e.refusal is not None}


def file(name: str, *pods: Pod) -> tuple[Manifest, ...]:
    return tuple(Manifest(p, Origin(name)) for p in pods)


# Order and identity (D7)


def test_one_scan_is_admitted_in_its_order() -> None:
    _, agent = begin(pod("b", app(cpu="4")), pod("a", app(cpu="4")), pod("c", app(cpu="3")))
    assert names(agent) == ["b", "a", "c"]
    assert refused(agent) == {"a": "OutOfcpu"}, "c fits into what is left"


def test_the_order_of_manifests_decides_nothing_once_pods_run() -> None:
    machine, agent = begin(pod("a", app(cpu="2")), pod("b", app(cpu="2")))
    agent.want(pod("b", app(cpu="2")), pod("a", app(cpu="2")))
    writes = len(machine.writes)
    agent.turn()
    assert len(machine.writes) == writes
    assert agent.turn_events == ()


def test_a_changed_manifest_ends_the_old_pod_fully_before_the_new_one_is_admitted() -> None:
    machine, agent = begin(pod("a", app(cpu="5"), uid="old"))
    machine.groups["podold/app"].processes[0].is_stubborn = True
    agent.want(pod("a", app(cpu="6"), uid="new"))
    agent.rest()
    assert [(e.pod.uid, e.phase) for e in agent.state.entries] == [("old", Phase.TERMINATING)]
    agent.settle()
    assert [(e.pod.uid, e.phase) for e in agent.state.entries] == [("new", Phase.RUNNING)]
    assert agent.event_names() == [
        ("pod_admitted", "a"),
        ("container_starting", "app"),
        ("pod_ending", "a"),
        ("container_exited", "app"),
        ("pod_removed", "a"),
        ("pod_admitted", "a"),
        ("container_starting", "app"),
    ]


def test_a_change_that_is_taken_back_while_the_pod_ends_starts_it_anew() -> None:
    machine, agent = begin(pod("a", app(cpu="5")))
    machine.groups["poduid-a/app"].processes[0].is_stubborn = True
    agent.want()
    agent.turn()
    agent.want(pod("a", app(cpu="5")))
    agent.rest()
    assert entry(agent).phase is Phase.TERMINATING, "what was asked to end can't be asked to stay"
    agent.settle()
    assert entry(agent).phase is Phase.RUNNING
    assert len(machine.starts) == 2


def test_a_pod_that_comes_back_under_its_uid_does_not_inherit_the_end_of_its_last_life() -> None:
    """The launcher still knows the first life's exit in the turn in which the second is admitted."""
    same = pod("a", app(cpu="2"))
    machine, agent = begin(same)
    agent.want()
    agent.turn()
    machine.now_ms += 1
    agent.want(same)
    agent.turn()
    assert [f.kind for f in agent.turn_events] == [
        EventKind.CONTAINER_EXITED,
        EventKind.POD_REMOVED,
        EventKind.POD_ADMITTED,
        EventKind.CONTAINER_STARTING,
    ]
    agent.rest()
    assert machine.running_containers() == ("poduid-a/app",)
    status = entry(agent).status("app")
    assert (status.restarts, status.last_exit, status.exit) == (0, None, None)
    assert len(machine.starts) == 2


def test_run_ids_fit_the_launcher_and_are_unique() -> None:
    _, agent = begin(pod("a", app("n" * 63), uid="u" * 128), pod("b", app("n" * 63), uid="u" * 127 + "v"))
    first, second = agent.state.entries
    status = replace(first.containers[0], attempt=9_999_999)
    assert len(run_id(first, status)) <= 120
    ids = {run_id(first, status), run_id(second, status), run_id(first, first.containers[0])}
    ids.add(run_id(replace(first, decided_at_ms=first.decided_at_ms + 1), status))
    assert len(ids) == 4


def test_of_two_files_with_one_name_the_first_wins_and_the_other_is_reported() -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    agent.wanted = file("1.yaml", pod("a", uid="one")) + file("2.yaml", pod("a", uid="two"))
    agent.rest()
    assert [e.pod.uid for e in agent.state.entries] == ["one"]
    shadowed = next(agent.reported(EventKind.MANIFEST_SHADOWED))
    assert shadowed == TurnEvent(
        EventKind.MANIFEST_SHADOWED,
        pod("a", uid="two"),
        Origin("2.yaml"),
        None,
        (("same", "name"), ("first_source", "1.yaml")),
    )
    agent.wanted = agent.wanted[1:]
    agent.settle()
    assert [e.pod.uid for e in agent.state.entries] == ["two"], "the shadow steps in when the first goes"


BENCH = file("bench.yaml", pod("bench", uid="one"))


@pytest.mark.parametrize(
    "stray",
    [
        pytest.param(file("a-backup.yaml", pod("bench", uid="two")), id="name"),
        pytest.param(file("a-backup.yaml", pod("other", uid="one")), id="uid"),
    ],
)
def test_a_pod_that_runs_keeps_its_name_and_its_uid_against_a_file_that_comes_later(
    stray: tuple[Manifest, ...],
) -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    agent.wanted = BENCH
    agent.rest()
    agent.wanted = stray + BENCH
    agent.settle()
    agent.restart()
    agent.settle()
    assert [(e.pod.name, e.pod.uid) for e in agent.state.entries] == [("bench", "one")]
    assert len(machine.starts) == 1
    assert machine.signals == []
    (shadowed,) = [event for event in agent.turn_events if event.kind is EventKind.MANIFEST_SHADOWED]
    assert (shadowed.origin.name, dict(shadowed.fields)["first_source"]) == ("a-backup.yaml", "bench.yaml")
    agent.wanted = stray
    agent.settle()
    assert [e.pod for e in agent.state.entries] == [stray[0].pod], (
        "it steps in once the file of the one that ran is gone"
    )


def test_a_pod_whose_file_is_renamed_runs_on_beside_another_file_of_its_name() -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    agent.wanted = BENCH
    agent.rest()
    agent.wanted = file("a-backup.yaml", pod("bench", uid="two")) + file("z.yaml", BENCH[0].pod)
    agent.settle()
    assert [(e.pod.uid, e.origin.name) for e in agent.state.entries] == [("one", "z.yaml")]
    assert len(machine.starts) == 1


@pytest.mark.parametrize(
    "problem",
    [{"unreadable": frozenset({"bench.yaml"})}, {"misspelt": frozenset({"default/bench"})}],
    ids=lambda one: next(iter(one)),
)
def test_a_file_that_cannot_be_understood_for_a_while_still_counts_before_its_copy(
    problem: dict[str, frozenset[str]],
) -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    agent.wanted = BENCH
    agent.rest()
    copy = file("a-backup.yaml", BENCH[0].pod)
    agent.wanted = copy
    for name, value in problem.items():
        setattr(agent, name, value)
    agent.settle()
    agent.unreadable = agent.misspelt = frozenset()
    agent.wanted = copy + file("bench.yaml", pod("bench", app(cpu="2"), uid="two"))
    agent.settle()
    assert [(e.pod.uid, e.origin.name) for e in agent.state.entries] == [("two", "bench.yaml")]


def finish(agent: Agent) -> None:
    (run_of_it,) = agent.machine.running()
    agent.machine.exit(run_of_it, code=0)


def release(agent: Agent) -> None:
    agent.released = frozenset({"one"})


@pytest.mark.parametrize(
    ("one", "happens", "phase"),
    [
        (pod("bench", app(cpu="2000"), uid="one"), lambda _: None, Phase.FAILED),
        (pod("bench", uid="one", restart_policy=RestartPolicy.NEVER), finish, Phase.SUCCEEDED),
        (pod("bench", uid="one"), release, Phase.FAILED),
    ],
    ids=["refused", "finished", "released"],
)
def test_what_has_ended_does_not_come_back_by_a_copy_of_its_file(
    one: Pod, happens: Callable[[Agent], None], phase: Phase
) -> None:
    _, agent = begin(one)
    agent.wanted = file("a-backup.yaml", pod("bench", uid="two")) + agent.wanted
    agent.settle()
    happens(agent)
    agent.settle()
    agent.restart()
    agent.settle()
    assert [(e.pod.uid, e.phase) for e in agent.state.entries] == [("one", phase)]


def test_of_two_pods_with_one_uid_the_first_wins() -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    agent.wanted = file("1.yaml", pod("a", uid="same"), pod("b", uid="same"), pod("c", uid="same"))
    agent.rest()
    assert names(agent) == ["a"]
    assert [f.pod.name for f in agent.turn_events] == ["b", "c"]


def test_a_pod_in_another_namespace_is_another_pod() -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    other = replace(pod("a", uid="two"), namespace="other")
    agent.wanted = file("1.yaml", pod("a", uid="one"), other)
    agent.rest()
    assert [e.pod.full_name for e in agent.state.entries] == ["default/a", "other/a"]


def test_a_name_that_is_ending_is_not_admitted_under_its_uid_elsewhere() -> None:
    """A pod is renamed and keeps its metadata.uid: the cgroup would be the same."""
    machine, agent = begin(pod("a", uid="same"))
    machine.groups["shared/pool/payload/besteffort/podsame/app"].processes[0].is_stubborn = True
    agent.want(pod("b", uid="same"))
    agent.rest()
    assert names(agent) == ["a"]
    agent.settle()
    assert names(agent) == ["b"]


def test_a_file_that_is_renamed_changes_nothing_but_where_the_pod_is_said_to_come_from() -> None:
    machine, agent = begin(pod("a"))
    agent.wanted = file("z.yaml", pod("a"))
    agent.rest()
    assert entry(agent).origin.name == "z.yaml"
    assert len(machine.starts) == 1
    agent.wanted, agent.unreadable = (), frozenset({"z.yaml"})
    agent.rest()
    assert entry(agent).phase is Phase.RUNNING, "it is the new file that can't be read"


# Files that can't be understood


def unreadable(agent: Agent) -> None:
    agent.wanted, agent.unreadable = agent.wanted[1:], frozenset({"a.yaml"})


def misspelt(agent: Agent) -> None:
    agent.wanted, agent.misspelt = agent.wanted[1:], frozenset({"default/a"})


def blind(agent: Agent) -> None:
    agent.wanted, agent.is_blind = (), True


def partial(agent: Agent) -> None:
    agent.wanted, agent.is_partial = agent.wanted[1:], True


@pytest.mark.parametrize("problem", [unreadable, misspelt, blind, partial])
def test_what_runs_stays_while_its_file_cannot_be_understood(problem: Callable[[Agent], None]) -> None:
    machine, agent = begin(pod("a", app(cpu="2")), pod("b"))
    before = machine.running_containers()
    problem(agent)
    agent.rest()
    agent.restart()
    agent.rest()
    assert machine.running_containers() == before
    agent.unreadable = agent.misspelt = frozenset()
    agent.is_blind = agent.is_partial = False
    agent.want(pod("b"))
    agent.settle()
    assert names(agent) == ["b"]


@pytest.mark.parametrize("problem", [unreadable, misspelt, blind, partial])
def test_a_refusal_stays_while_its_file_cannot_be_understood(problem: Callable[[Agent], None]) -> None:
    _, agent = begin(pod("a", app(cpu="2000")), pod("b"))
    problem(agent)
    agent.rest()
    assert refused(agent) == {"a": "OutOfcpu"}


def test_other_pods_come_and_go_while_one_file_cannot_be_understood() -> None:
    machine, agent = begin(pod("a"), pod("b"))
    agent.wanted, agent.unreadable = manifests(pod("c")), frozenset({"a.yaml"})
    agent.settle()
    assert machine.running_containers() == ("poduid-a/app", "poduid-c/app")


def test_what_is_found_while_the_directory_is_known_in_part_counts() -> None:
    machine, agent = begin(pod("a"), pod("b"))
    agent.is_partial = True
    agent.want(pod("b", uid="changed"), pod("c"))
    agent.settle()
    assert machine.running_containers() == ("podchanged/app", "poduid-a/app", "poduid-c/app")


@pytest.mark.parametrize("problem", [unreadable, misspelt, partial])
def test_a_shadow_does_not_step_in_while_the_first_file_cannot_be_understood(problem: Callable[[Agent], None]) -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    agent.wanted = file("a.yaml", pod("a", uid="one")) + file("b.yaml", pod("a", uid="two"))
    agent.rest()
    problem(agent)
    agent.rest()
    assert [e.pod.uid for e in agent.state.entries] == ["one"]
    assert len(machine.starts) == 1


def test_a_valid_pod_counts_even_if_another_file_misspells_its_name() -> None:
    _machine, agent = begin(pod("a", uid="one"))
    agent.misspelt = frozenset({"default/a"})
    agent.want(pod("a", uid="two"))
    agent.settle()
    assert [e.pod.uid for e in agent.state.entries] == ["two"], "the very file of the pod has a valid one"


def test_nothing_is_admitted_blindly() -> None:
    machine = Machine(NODE)
    agent = Agent(machine)
    agent.want(pod("a"))
    agent.is_blind = True
    agent.rest()
    assert names(agent) == []


# Several sources


UNITS = "units"


def of_units(*pods: Pod, name: str = "a.yaml", **more: Any) -> PodSource:
    """Another source than the manifest directory, which has its pods under a name that is a file's there, too."""
    return PodSource(tuple(Manifest(p, Origin(name, UNITS)) for p in pods), name=UNITS, **more)


def sourced(agent: Agent) -> dict[str, str]:
    return {e.pod.name: e.origin.source for e in agent.state.entries}


def begin_with_both() -> tuple[Machine, Agent]:
    machine = Machine(NODE)
    agent = Agent(machine)
    agent.want(pod("a", app(cpu="2")))
    agent.other_sources = (of_units(pod("b", app(cpu="2"))),)
    agent.rest()
    assert sourced(agent) == {"a": MANIFEST_DIRECTORY, "b": UNITS}
    return machine, agent


@pytest.mark.parametrize(
    ("silent", "other"),
    [
        ((of_units(is_blind=True),), "blind"),
        ((of_units(unreadable=frozenset({"a.yaml"})),), "unreadable"),
        ((of_units(misspelt=frozenset({"default/b"})),), "misspelt"),
        ((), "gone"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_source_that_says_nothing_keeps_its_own_pods_and_no_others(silent: tuple[PodSource, ...], other: str) -> None:
    _, agent = begin_with_both()
    agent.want()
    agent.other_sources = silent
    agent.settle()
    agent.restart()
    agent.settle()
    assert sourced(agent) == {"b": UNITS}, other
    agent.other_sources = (of_units(),)
    agent.settle()
    assert agent.state.entries == ()


def test_the_other_sources_pods_come_and_go_while_the_directory_cannot_be_read() -> None:
    _, agent = begin_with_both()
    agent.wanted, agent.is_blind = (), True
    agent.other_sources = (of_units(pod("c")),)
    agent.settle()
    assert sourced(agent) == {"a": MANIFEST_DIRECTORY, "c": UNITS}


@pytest.mark.parametrize("problem", [unreadable, misspelt])
def test_what_is_wrong_in_one_source_is_nothing_to_a_pod_of_that_name_in_another(
    problem: Callable[[Agent], None],
) -> None:
    agent = Agent(Machine(NODE))
    agent.other_sources = (of_units(pod("a")),)
    agent.rest()
    agent.wanted = file("a.yaml", pod("a"))
    problem(agent)
    agent.other_sources = (of_units(),)
    agent.settle()
    assert agent.state.entries == ()


def test_of_two_sources_with_one_name_the_first_wins_and_who_is_there_keeps_it() -> None:
    agent = Agent(Machine(NODE))
    agent.other_sources = (of_units(pod("a", uid="units")),)
    agent.wanted = file("a.yaml", pod("a", uid="file"))
    agent.rest()
    assert [e.pod.uid for e in agent.state.entries] == ["file"]
    assert next(agent.reported(EventKind.MANIFEST_SHADOWED)).origin == Origin("a.yaml", UNITS)
    agent.want()
    agent.settle()
    assert [e.pod.uid for e in agent.state.entries] == ["units"], "the shadow steps in when the first goes"
    agent.wanted = file("a.yaml", pod("a", uid="file"))
    agent.settle()
    assert [e.pod.uid for e in agent.state.entries] == ["units"], (
        "under the same name in another source it is another's"
    )


def test_a_pod_goes_over_to_another_source_that_has_it_and_not_from_one_that_says_nothing() -> None:
    machine, agent = begin_with_both()
    agent.other_sources = (of_units(is_blind=True),)
    agent.want(pod("a", app(cpu="2")), pod("b", app(cpu="2")))
    agent.settle()
    assert sourced(agent) == {"a": MANIFEST_DIRECTORY, "b": UNITS}
    agent.other_sources = (of_units(),)
    agent.settle()
    assert sourced(agent) == {"a": MANIFEST_DIRECTORY, "b": MANIFEST_DIRECTORY}
    assert len(machine.starts) == 2


# Refusals


@pytest.mark.parametrize("problem", [unreadable, misspelt, blind])
def test_a_refusal_stays_when_it_is_retried_while_its_file_cannot_be_understood(
    problem: Callable[[Agent], None],
) -> None:
    _, agent = begin(pod("a", app(cpu="2000")), pod("b"))
    problem(agent)
    agent.retried = frozenset({"uid-a"})
    agent.rest()
    assert refused(agent) == {"a": "OutOfcpu"}


def test_a_refusal_is_final_until_the_manifest_changes() -> None:
    _, agent = begin(pod("a", app(cpu="5")), pod("b", app(cpu="5")))
    assert refused(agent) == {"b": "OutOfcpu"}
    agent.want(pod("b", app(cpu="5")))
    agent.rest()
    agent.restart()
    agent.rest()
    assert refused(agent) == {"b": "OutOfcpu"}, "there is room now; nobody asked"
    agent.want(pod("b", app(cpu="4"), uid="changed"))
    agent.rest()
    assert refused(agent) == {}
    assert entry(agent, "b").phase is Phase.RUNNING


def test_a_refusal_names_what_was_asked_and_what_there_is() -> None:
    _, agent = begin(pod("b", app(cpu="8")))
    event = next(agent.reported(EventKind.POD_REFUSED))
    assert dict(event.fields) == {
        "reason": "OutOfcpu",
        "message": "Node didn't have enough resource: cpu, requested: 8000, used: 0, capacity: 7000",
    }


def test_retry_decides_again_on_a_refused_pod_and_on_no_other() -> None:
    _, agent = begin(pod("a", app(cpu="5")), pod("b", app(cpu="5")))
    agent.retried = frozenset({"uid-a", "uid-b"})
    agent.turn()
    assert refused(agent) == {"b": "OutOfcpu"}
    assert entry(agent).phase is Phase.RUNNING
    agent.want(pod("b", app(cpu="5")))
    agent.rest()
    agent.retried = frozenset({"uid-b"})
    agent.rest()
    assert refused(agent) == {}
    assert agent.event_names()[-2:] == [("pod_admitted", "b"), ("container_starting", "app")]


def test_a_retry_of_a_pod_that_nobody_wants_any_more_removes_it() -> None:
    _, agent = begin(pod("b", app(cpu="50")))
    agent.want()
    agent.retried = frozenset({"uid-b"})
    agent.turn()
    assert names(agent) == []
    assert [f.kind for f in agent.turn_events] == [EventKind.POD_REMOVED]


def test_a_refused_pod_is_decided_on_once() -> None:
    _, agent = begin(pod("b", app(cpu="50")))
    assert agent.event_names() == [("pod_refused", "b")]
    generation = agent.state.generation
    agent.rest()
    assert agent.state.generation == generation


def test_a_refusal_changes_no_promise() -> None:
    _, agent = begin(pod("a", app(cpu="2")))
    before = agent.state.promises
    agent.want(pod("a", app(cpu="2")), pod("b", init(cpu="4"), app(cpu="50")))
    agent.rest()
    assert agent.state.promises == before


# Room (D6)


def test_pods_beyond_max_pods_are_refused() -> None:
    machine = Machine(node(SMALL, max_pods=1))
    agent = Agent(machine)
    agent.want(pod("a"), pod("b"))
    agent.rest()
    assert refused(agent) == {"b": "OutOfpods"}


def test_a_refused_or_finished_pod_takes_no_room() -> None:
    machine = Machine(node(SMALL, max_pods=1))
    agent = Agent(machine)
    agent.want(pod("big", app(cpu="50")), job("a"))
    agent.rest()
    machine.exit(machine.run_of("app"), 0)
    agent.rest()
    agent.want(pod("big", app(cpu="50")), job("a"), pod("c"))
    agent.rest()
    assert machine.running_containers() == ("poduid-c/app",)


def test_a_finished_pod_is_remembered_with_the_cpus_that_it_gives_back() -> None:
    machine = Machine(node(SMALL))
    agent = Agent(machine)
    agent.want(job("a", app(cpu="2")))
    agent.rest()
    held = own_set_of(agent.state.promises, "uid-a", "app")
    assert held is not None
    assert agent.state.entries[0].status("app").had_cpus is None, "it has them still"
    machine.exit(machine.run_of("app"), 0)
    agent.rest()
    assert own_set_of(agent.state.promises, "uid-a", "app") is None
    assert agent.state.entries[0].status("app").had_cpus == held


def test_an_ending_pod_takes_room_until_it_is_gone() -> None:
    machine, agent = begin(pod("a", app(cpu="5")))
    machine.groups["poduid-a/app"].processes[0].is_stubborn = True
    agent.want(pod("b", app(cpu="5")))
    agent.rest()
    assert refused(agent) == {"b": "OutOfcpu"}, "as in kubelet; `retry` decides again"


def test_the_check_can_be_turned_off_and_the_managers_still_refuse() -> None:
    machine = Machine(node(SMALL, config={"check_allocatable": False}))
    agent = Agent(machine)
    agent.want(
        pod(
            "a",
        ),
        pod("b", app(cpu="8")),
        pod("c", app(resources=burstable("50"))),
    )
    agent.rest()
    assert refused(agent) == {"b": "UnexpectedAdmissionError"}


# Release (D11)


def test_cpus_come_back_only_when_the_cgroup_is_empty() -> None:
    machine, agent = begin(pod("a", cgroup_only(cpu="4")), pod("b"))
    mine = exclusive_cpus(agent.state.promises)
    machine.groups["poduid-a/slot"].is_unkillable = True
    machine.enter("poduid-a/slot", stubborn=True)
    agent.want(pod("b"), pod("c", app(cpu="2")))
    agent.rest()
    machine.now_ms += 3600_000
    agent.rest()
    assert mine <= exclusive_cpus(agent.state.promises)
    assert own_set_of(agent.state.promises, "uid-c", "app") is not None
    machine.groups["poduid-a/slot"].processes.clear()
    agent.rest()
    assert mine <= default_set(agent.state.promises) | (own_set_of(agent.state.promises, "uid-c", "app") or mine)
    assert names(agent) == ["b", "c"]


def test_without_the_launcher_an_ending_pod_with_a_start_under_way_is_kept() -> None:
    machine, agent = begin(pod("a", app(cpu="4")), pod("b", cgroup_only(cpu="2")))
    machine.launcher_answers = False
    machine.exit(machine.run_of("app"), 0)
    agent.want()
    agent.rest()
    assert names(agent) == ["a"], "b needs nobody's word: its cgroup is empty, and nothing is ever started in it"
    machine.launcher_answers = True
    agent.rest()
    assert names(agent) == []


def test_pods_are_admitted_without_the_launcher_and_started_with_it() -> None:
    machine = Machine(NODE)
    machine.launcher_answers = False
    agent = Agent(machine)
    agent.want(pod("a", app(cpu="2")))
    agent.rest()
    assert entry(agent).phase is Phase.PENDING
    assert "poduid-a/app" in machine.groups
    machine.launcher_answers = True
    agent.rest()
    assert machine.running_containers() == ("poduid-a/app",)


def test_coming_and_going_leaves_nothing_behind() -> None:
    machine, agent = begin()
    before, directories = agent.state, set(machine.groups)
    agent.want(pod("a", init(cpu="4"), app(cpu="2")), pod("b", app(resources=burstable())), pod("c"))
    agent.rest()
    agent.want()
    agent.settle()
    assert replace(agent.state, generation=0) == replace(before, generation=0)
    assert set(machine.groups) == directories
    assert machine.runs == {}


# Reports (D16)


@pytest.mark.parametrize(
    ("container", "why"),
    [
        pytest.param(app(cpu="2"), None, id="exclusive"),
        pytest.param(app(cpu="1500m"), WhyShared.FRACTIONAL, id="a fraction"),
        pytest.param(app(), WhyShared.NO_CPU_REQUEST, id="best effort"),
        pytest.param(app(resources=burstable("2", "3")), WhyShared.LIMIT_DIFFERS, id="limit and request differ"),
        pytest.param(
            app(resources=ResourceRequirements(amounts("2"), amounts(None))), WhyShared.NO_CPU_LIMIT, id="no limit"
        ),
        pytest.param(
            app(resources=ResourceRequirements(amounts("2"), Resources.of({"cpu": Quantity.parse("2")}))),
            WhyShared.NO_MEMORY_LIMIT,
            id="no memory limit",
        ),
        *(
            pytest.param(
                app(
                    resources=ResourceRequirements(amounts("2"), Resources.of(dict(amounts("2")) | {name: Quantity(0)}))
                ),
                why,
                id=f"{name} limit 0",
            )
            for name, why in (("cpu", WhyShared.CPU_LIMIT_0), ("memory", WhyShared.MEMORY_LIMIT_0))
        ),
    ],
)
def test_the_admission_says_why_a_container_is_not_exclusive(container: Container, why: WhyShared | None) -> None:
    _, agent = begin(pod("a", container))
    report = next(agent.reported(EventKind.POD_ADMITTED)).report
    assert report is not None
    assert [c.why_shared for c in report.containers] == [why]


# Determinism and invariants


def test_a_turn_is_a_function_of_state_and_world() -> None:
    _, agent = begin(pod("a", app(cpu="2")))
    world = agent.world()
    assert step(agent.state, world) == step(agent.state, world)
    assert step(agent.state, world).state == agent.state


def broken(state: NodeState) -> list[Invariant]:
    return [violation.invariant for violation in violations(NODE.managers, state)]


def test_a_state_with_two_entries_of_one_pod_is_named_broken() -> None:
    _, agent = begin(pod("a"), pod("b"))
    doubled = replace(agent.state, entries=agent.state.entries + agent.state.entries[:1])
    assert Invariant.ONE_ENTRY_PER_UID in broken(doubled)
    renamed = replace(agent.state.entries[1], pod=replace(agent.state.entries[1].pod, name="a"))
    assert broken(replace(agent.state, entries=(agent.state.entries[0], renamed))) == [Invariant.ONE_ENTRY_PER_NAME]
    cut = replace(agent.state.entries[0], containers=())
    assert broken(agent.state.with_entry(cut)) == [Invariant.ONE_STATUS_PER_CONTAINER]


def test_promises_of_a_pod_that_is_not_active_are_named_broken() -> None:
    _, agent = begin(pod("a", app(cpu="2")))
    over = replace(agent.state.entries[0], outcome=Phase.SUCCEEDED)
    assert broken(agent.state.with_entry(over)) == [Invariant.HOLDER_IS_ACTIVE]


def test_an_empty_world_changes_nothing() -> None:
    state = empty_state(NODE)
    world = World(
        NODE.config,
        NODE.managers,
        NODE.allocatable,
        (PodSource(),),
        runs={},
        observed={},
        now_ms=START_MS,
    )
    turn = step(state, world)
    assert turn.state is state or turn.state == state
    assert (turn.events, turn.deltas, turn.wake_at_ms) == ((), (), None)


def test_isolation_follows_the_promise() -> None:
    _, agent = begin(pod("a", app(cpu="2"), app("more", cpu="1500m")))
    levels = [isolation(NODE.managers, agent.state.promises, entry(agent).pod, n).value for n in ("app", "more")]
    assert levels == ["container", "host"]


MOMENTS = NodeState(
    initial(NODE.managers),
    (
        replace(
            new_entry(manifests(pod("a"))[0], 5_000, pod_level_resources=False),
            containers=(
                ContainerStatus(
                    "app", started_at_ms=6_000, exit=Exit(7_000, code=1), last_exit=Exit(5_500), stop_by_ms=9_000
                ),
                ContainerStatus("new"),
            ),
            deleting_since_ms=8_000,
        ),
        replace(
            new_entry(manifests(pod("b"))[0], 5_100, pod_level_resources=False),
            refusal=Waiting("OutOfcpu", "too little", 5_100),
            containers=(),
        ),
    ),
    generation=3,
)


def moments(state: NodeState) -> list[int | None]:
    found: list[int | None] = []
    for entry in state.entries:
        found += [entry.deleting_since_ms, None if entry.refusal is None else entry.refusal.at_ms]
        for status in entry.containers:
            found += [status.started_at_ms, status.stop_by_ms]
            found += [None if ended is None else ended.finished_at_ms for ended in (status.exit, status.last_exit)]
    return found


@pytest.mark.parametrize("by_ms", [-5_000, -1, 0, 3_600_000])
def test_all_moments_but_those_that_name_runs_move_with_the_clock(by_ms: int) -> None:
    after = shift_times(MOMENTS, by_ms)
    assert moments(after) == [None if moment is None else moment + by_ms for moment in moments(MOMENTS)]
    assert [e.decided_at_ms for e in after.entries] == [5_000, 5_100]
    assert shift_times(after, -by_ms) == MOMENTS


def test_no_moment_is_before_1970() -> None:
    assert {moment for moment in moments(shift_times(MOMENTS, -(10**12))) if moment is not None} == {0}
