"""Who holds what of a runtime's containers: each event by itself, then any of them in any order."""

from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.core.domains.runtime.answers import WantedPlacement
from nodeagent.core.domains.runtime.instructions import (
    Adopt,
    Correct,
    CountFailOpen,
    CountIllegal,
    Decide,
    GiveBack,
    Happening,
    LetStart,
    Looked,
    Place,
    Populated,
    Refuse,
    Retried,
    RoomMade,
    Todo,
)
from nodeagent.core.domains.runtime.occupants import wanted_by_id
from nodeagent.core.domains.runtime.registry import (
    ContainerKey,
    KeyEntry,
    MadeContainer,
    RefusedKey,
    Registry,
    Stage,
    apply_event,
    record_decision,
)
from nodeagent.core.domains.runtime.stages import TABLE, Condition, ContainerEvent, condition_of
from nodeagent.core.metrics.agent_metrics import RUNTIME_ILLEGAL, START_VALUES
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.kubelet_pod import KubeletPod
from nodeagent.core.model.nri import (
    Call,
    ContainerState,
    Event,
    NriContainer,
    NriResources,
    Sandbox,
    Synchronized,
)
from nodeagent.core.model.refusals import Reason

KEY = ContainerKey("uid-p", "app")
OTHER = ContainerKey("uid-q", "app")
WANTED = WantedPlacement(CpuSet.of(2, 3), NumaSet.of(0), exclusive_cpus=CpuSet.of(2, 3))
SHARES = NriResources(cpu_shares=2048)


def box(pod: str = "p", sandbox_id: str | None = None, **more: Any) -> Sandbox:
    fields = {"labels": (), "annotations": (), "cgroup_parent": "kubepods-podx.slice"} | more
    return Sandbox(id=sandbox_id or f"box-{pod}", uid=f"uid-{pod}", name=pod, namespace="default", **fields)


def container(container_id: str, name: str = "app", pod: str = "p", **more: Any) -> NriContainer:
    fields = {"sandbox_id": f"box-{pod}", "state": ContainerState.CREATED, "resources": SHARES} | more
    return NriContainer(
        id=container_id, name=name, labels=(), annotations=(), pid=None, cgroups_path="", oom_score_adj=-997, **fields
    )


def create(container_id: str, pod: str = "p", **more: Any) -> Call:
    return Call(Event.CREATE_CONTAINER, box(pod), container(container_id, pod=pod, **more))


def called(event: Event, container_id: str, pod: str = "p") -> Call:
    return Call(event, box(pod), container(container_id, pod=pod))


def update(container_id: str, **resources: Any) -> Call:
    return replace(called(Event.UPDATE_CONTAINER, container_id), resources=NriResources(**resources))


def listed(container_id: str, state: ContainerState = ContainerState.RUNNING, **more: Any) -> NriContainer:
    return container(container_id, state=state, **more)


def synchronized(*containers: NriContainer, pods: str = "pq") -> Synchronized:
    return Synchronized(tuple(box(pod) for pod in pods), containers)


def after(*happenings: Happening, registry: Registry | None = None, refuse: str | None = None) -> Registry:
    """Everything that is to be decided on is granted, or refused."""
    registry = registry or Registry()
    for what in happenings:
        stepped = apply_event(registry, what, {})
        registry = stepped.registry
        for todo in stepped.todo:
            if isinstance(todo, Decide):
                registry = record_decision(registry, todo.key, todo.id, refuse).registry
    return registry


def todo(
    registry: Registry, what: Happening, wanted: dict[ContainerKey, WantedPlacement] | None = None
) -> tuple[Todo, ...]:
    return apply_event(registry, what, wanted or {}).todo


def begin(container_id: str) -> Call:
    return called(Event.START_CONTAINER, container_id)


STOP_POD, REMOVE_POD = Call(Event.STOP_POD_SANDBOX, box()), Call(Event.REMOVE_POD_SANDBOX, box())
NOBODY = Populated(frozenset())
RUNS = after(create("a"), begin("a"))
"""The container `a` has been placed and has begun."""


def test_a_new_container_is_decided_on_and_then_placed() -> None:
    assert todo(Registry(), create("a")) == (Decide(KEY, "a", is_again=False),)
    registry = apply_event(Registry(), create("a"), {}).registry
    assert record_decision(registry, KEY, "a", None).todo == (Place(KEY, "a"),)
    assert after(create("a")).entry(KEY).is_held


def test_another_one_of_the_key_gets_what_is_promised_while_the_old_one_is_there() -> None:
    assert todo(RUNS, create("b")) == (Place(KEY, "b"),)
    both = after(create("b"), registry=RUNS)
    assert [made.id for made in both.entry(KEY).made] == ["a", "b"]
    assert todo(both, begin("b")) == (LetStart(KEY, "b", ("a",)),)


def test_with_other_amounts_it_is_decided_on_again() -> None:
    assert todo(RUNS, create("b", resources=NriResources(cpu_shares=4096))) == (Decide(KEY, "b", is_again=True),)


def test_cpus_that_the_runtime_tells_are_not_what_is_asked_for() -> None:
    placed = replace(SHARES, cpus=CpuSet.of(7), mems=NumaSet.of(1))
    assert todo(RUNS, create("b", resources=placed)) == (Place(KEY, "b"),)


def test_annotations_of_others_are_not_what_is_asked_for() -> None:
    foreign = replace(create("b"), sandbox=box(annotations=(("kubernetes.io/config.seen", "now"),)))
    own = replace(create("b"), sandbox=box(annotations=(("exclusive-cpus.nodeagent.io/app", "1"),)))
    assert todo(RUNS, foreign) == (Place(KEY, "b"),)
    assert todo(RUNS, own) == (Decide(KEY, "b", is_again=True),)


def test_what_was_promised_is_given_back_when_the_removed_container_is_seen_empty() -> None:
    removed = after(called(Event.STOP_CONTAINER, "a"), called(Event.REMOVE_CONTAINER, "a"), registry=RUNS)
    assert todo(removed, Populated(frozenset({"a"}))) == ()
    assert todo(removed, NOBODY) == (GiveBack(KEY),)
    assert apply_event(removed, NOBODY, {}).registry.entries == ()


@pytest.mark.parametrize("ending", [STOP_POD, REMOVE_POD])
def test_it_is_given_back_when_the_pod_has_ended(ending: Call) -> None:
    assert todo(RUNS, ending) == ()
    assert todo(after(ending, registry=RUNS), NOBODY) == (GiveBack(KEY),)


def test_a_stopped_container_keeps_it_for_its_successor() -> None:
    stopped = after(called(Event.STOP_CONTAINER, "a"), registry=RUNS)
    assert todo(stopped, NOBODY) == ()
    assert todo(after(NOBODY, registry=stopped), create("b")) == (Place(KEY, "b"),)


def test_the_old_one_goes_and_the_new_one_keeps_it() -> None:
    both = after(create("b"), called(Event.REMOVE_CONTAINER, "a"), registry=RUNS)
    left = apply_event(both, NOBODY, {})
    assert left.todo == ()
    assert [made.id for made in left.registry.entry(KEY).made] == ["b"]


def test_seen_empty_before_it_was_removed_is_not_enough() -> None:
    assert todo(after(NOBODY, registry=RUNS), NOBODY) == ()


def test_the_same_pod_in_a_new_sandbox_goes_on() -> None:
    again = Call(Event.CREATE_CONTAINER, box(sandbox_id="box-2"), container("b", sandbox_id="box-2"))
    registry = after(STOP_POD, again, REMOVE_POD, registry=RUNS)
    assert todo(registry, NOBODY) == ()
    assert [made.id for made in after(NOBODY, registry=registry).entry(KEY).made] == ["b"]


# Refusals


def test_a_refusal_is_remembered_and_told_once() -> None:
    registry = apply_event(Registry(), create("a"), {}).registry
    refused = record_decision(registry, KEY, "a", "no CPUs")
    assert refused.todo == (Refuse(KEY, "a", "no CPUs", is_first=True),)
    assert refused.registry.entries == ()
    assert todo(refused.registry, create("b")) == (Refuse(KEY, "b", "no CPUs", is_first=False),)
    assert apply_event(refused.registry, create("b"), {}).registry == refused.registry


def test_what_device_plugins_had_no_time_for_is_decided_on_again() -> None:
    registry = after(create("a"), refuse=f"{Reason.DEVICE_PLUGINS_SLOW}: the next turn asks")
    assert todo(registry, create("b")) == (Decide(KEY, "b", is_again=False),)


REFUSED = after(create("a"), refuse="no CPUs")


def test_a_refusal_ends_with_the_next_retry() -> None:
    assert todo(REFUSED, Retried("uid-q")) == ()
    assert apply_event(REFUSED, Retried("uid-q"), {}).registry == REFUSED
    assert todo(after(Retried("uid-p"), registry=REFUSED), create("b")) == (Decide(KEY, "b", is_again=False),)


def test_a_refusal_does_not_count_where_there_is_more_room() -> None:
    again = apply_event(REFUSED, create("b"), {}, {KEY})
    assert (again.todo, again.registry.refused) == ((Decide(KEY, "b", is_again=False),), REFUSED.refused)
    assert apply_event(REFUSED, RoomMade(), {}, {KEY}).todo == ()
    runs = after(synchronized(listed("a")), refuse="no CPUs")
    assert apply_event(runs, RoomMade(), {}, {KEY}).todo == (Decide(KEY, "a", is_again=False),)
    assert apply_event(runs, RoomMade(), {}, {OTHER}).todo == ()


def test_a_refusal_ends_with_other_amounts() -> None:
    smaller = create("b", resources=NriResources(cpu_shares=1024))
    assert todo(REFUSED, smaller) == (Decide(KEY, "b", is_again=False),)
    assert after(smaller, registry=REFUSED).refused == ()


@pytest.mark.parametrize("ending", [REMOVE_POD, synchronized(pods="q")])
def test_a_refusal_ends_with_the_pod(ending: Happening) -> None:
    assert after(STOP_POD, registry=REFUSED).refused != ()
    assert after(ending, registry=REFUSED) == Registry(after(ending, registry=REFUSED).sandboxes)


def test_a_refused_update_leaves_what_there_was() -> None:
    more = update("a", cpu_shares=4096)
    assert todo(RUNS, more) == (Decide(KEY, "a", is_again=True),)
    refused = after(more, registry=RUNS, refuse="no CPUs")
    assert refused.entries == RUNS.entries
    assert todo(refused, more) == (Refuse(KEY, "a", "no CPUs", is_first=False),)
    assert todo(refused, create("b")) == (Place(KEY, "b"),)


# What each should hold

POOL = WantedPlacement(CpuSet.of(0, 1))


def held(registry: Registry, *populated: str, wanted: WantedPlacement = WANTED) -> dict[str, WantedPlacement]:
    return wanted_by_id(registry, {KEY: wanted}, POOL, frozenset(populated))


def test_what_is_the_keys_alone_is_the_oldest_ones_that_has_processes() -> None:
    both = after(create("b"), begin("b"), registry=RUNS)
    assert held(both, "a", "b") == {"a": WANTED, "b": POOL}
    assert held(both, "b") == {"a": POOL, "b": WANTED}
    assert held(both) == {"a": POOL, "b": WANTED}


def test_what_others_share_all_of_the_key_share() -> None:
    both = after(create("b"), begin("b"), registry=RUNS)
    shared = WantedPlacement(CpuSet.of(0))
    assert held(both, "a", "b", wanted=shared) == {"a": shared, "b": shared}


def test_what_was_refused_and_runs_is_in_the_pool() -> None:
    found = after(synchronized(listed("a")), refuse="no CPUs")
    assert wanted_by_id(found, {}, POOL, frozenset({"a"})) == {"a": POOL}
    assert held(found, "a") == {"a": POOL}


# Updates


def test_an_update_that_changes_nothing_is_answered_with_the_placement() -> None:
    assert todo(RUNS, update("a", memory_limit_bytes=None, cpus=CpuSet.of(0))) == (Place(KEY, "a"),)


def test_an_update_is_what_is_asked_for_from_then_on() -> None:
    larger = after(update("a", cpu_shares=4096), registry=RUNS)
    assert todo(larger, create("b", resources=NriResources(cpu_shares=4096))) == (Place(KEY, "b"),)
    assert todo(larger, update("a", cpu_shares=4096)) == (Place(KEY, "a"),)


def test_an_update_of_an_unknown_container_is_late_or_a_look_finds_it_running() -> None:
    assert todo(Registry(), update("a")) == (CountIllegal(ContainerEvent.UPDATE),)
    found = apply_event(Registry(), Looked(synchronized(listed("a"))), {})
    assert found.todo == (CountFailOpen(KEY, "a"), Decide(KEY, "a", is_again=False))


def test_an_update_of_the_pod_changes_nothing() -> None:
    assert apply_event(RUNS, Call(Event.UPDATE_POD_SANDBOX, box()), {}).registry == RUNS
    assert apply_event(RUNS, called(Event.POST_START_CONTAINER, "a"), {}).registry == RUNS


# What comes out of turn


def test_a_container_that_was_not_placed_does_not_begin() -> None:
    (refused,) = todo(Registry(), begin("a"))
    assert isinstance(refused, Refuse)
    assert "was not placed when it was created" in refused.reason
    (refused,) = todo(apply_event(Registry(), create("a"), {}).registry, begin("a"))
    assert isinstance(refused, Refuse)


@pytest.mark.parametrize("ending", [called(Event.REMOVE_CONTAINER, "a"), STOP_POD])
def test_a_container_that_has_ended_neither_begins_nor_comes_back(ending: Call) -> None:
    ended = after(ending, registry=RUNS)
    for what in (create("a"), begin("a")):
        counted, refused = todo(ended, what)
        assert isinstance(counted, CountIllegal)
        assert isinstance(refused, Refuse)
        assert apply_event(ended, what, {}).registry == ended
    assert todo(ended, update("a", cpu_shares=1)) == (CountIllegal(ContainerEvent.UPDATE),)


def test_nothing_is_created_in_a_pod_that_has_been_stopped() -> None:
    counted, refused = todo(after(STOP_POD, registry=RUNS), create("b"))
    assert counted == CountIllegal(ContainerEvent.CREATE)
    assert isinstance(refused, Refuse)


def test_the_same_event_again_changes_nothing() -> None:
    assert after(create("a"), begin("a"), begin("a"), registry=RUNS) == RUNS


CONDITIONS = {
    Condition.UNKNOWN: Registry(),
    Condition.CREATED: apply_event(Registry(), create("a"), {}).registry,
    Condition.CREATED_PLACED: after(create("a")),
    Condition.STARTED: after(Looked(synchronized(listed("a"))), refuse="no CPUs"),
    Condition.STARTED_PLACED: RUNS,
    Condition.STOPPED: after(called(Event.STOP_CONTAINER, "a"), registry=RUNS),
    Condition.REMOVED: after(called(Event.REMOVE_CONTAINER, "a"), registry=RUNS),
}
CALLS = {
    ContainerEvent.CREATE: create("a", resources=NriResources(cpu_shares=7)),
    ContainerEvent.START: begin("a"),
    ContainerEvent.UPDATE: update("a", cpu_shares=7),
    ContainerEvent.STOP: called(Event.STOP_CONTAINER, "a"),
    ContainerEvent.REMOVE: called(Event.REMOVE_CONTAINER, "a"),
}
ILLEGAL = {
    (Condition.UNKNOWN, ContainerEvent.UPDATE),
    (Condition.STARTED, ContainerEvent.CREATE),
    (Condition.STARTED_PLACED, ContainerEvent.CREATE),
    *(
        (condition, event)
        for condition in (Condition.STOPPED, Condition.REMOVED)
        for event in (ContainerEvent.CREATE, ContainerEvent.START, ContainerEvent.UPDATE)
    ),
}


@pytest.mark.parametrize("condition", Condition)
@pytest.mark.parametrize("event", CALLS)
def test_an_illegal_event_changes_nothing_and_is_counted(condition: Condition, event: ContainerEvent) -> None:
    registry = CONDITIONS[condition]
    made = next((made for entry in registry.entries for made in entry.made), None)
    assert condition_of(made) is condition
    elsewhere = replace(CALLS[event], sandbox=replace(box(), id="another sandbox"), pod=KubeletPod("p"))
    is_illegal = (condition, event) in ILLEGAL
    for call in (CALLS[event], elsewhere):
        stepped = apply_event(registry, call, {})
        assert (CountIllegal(event) in stepped.todo) is is_illegal
        assert not is_illegal or stepped.registry == registry
    if is_illegal:
        asks = event in {ContainerEvent.CREATE, ContainerEvent.START}
        assert any(isinstance(one, Refuse) for one in stepped.todo) is asks


def test_each_illegal_event_has_a_series_from_the_start() -> None:
    assert set(START_VALUES[RUNTIME_ILLEGAL]) == {(event.value,) for _, event in ILLEGAL}
    all_events = {(condition, event) for condition in Condition for event in ContainerEvent}
    known = {(condition, event) for condition, row in TABLE.items() for event in row}
    of_unknown = {(Condition.UNKNOWN, ContainerEvent.POD_END)}
    assert all_events - known == ILLEGAL | of_unknown, "an unknown container is of no pod"


def test_ends_of_unknown_containers_are_ignored() -> None:
    for event in (Event.STOP_CONTAINER, Event.REMOVE_CONTAINER):
        assert apply_event(RUNS, called(event, "x"), {}) == apply_event(RUNS, Populated(frozenset()), {})


def test_a_late_stop_does_not_bring_back_what_was_removed() -> None:
    late = after(called(Event.REMOVE_CONTAINER, "a"), called(Event.STOP_CONTAINER, "a"), registry=RUNS)
    assert todo(late, NOBODY) == (GiveBack(KEY),)


# Synchronize

PINNED = replace(SHARES, cpus=WANTED.cpus, mems=WANTED.mems)


def test_what_has_what_is_promised_is_adopted() -> None:
    """After a start of the agent it is new here: it was placed by the one before."""
    for registry in (RUNS, Registry()):
        found = apply_event(registry, synchronized(listed("a", resources=PINNED)), {KEY: WANTED})
        assert found.todo == (Adopt(KEY, "a"),)
        assert found.registry.entries == RUNS.entries
    assert todo(found.registry, create("b")) == (Place(KEY, "b"),)


def test_what_has_something_else_is_a_difference_and_put_right() -> None:
    has = replace(PINNED, cpus=CpuSet.of(0))
    found = apply_event(RUNS, synchronized(listed("a", resources=has)), {KEY: WANTED})
    assert found.todo == (Correct(KEY, "a", WANTED, has),)


def test_what_began_while_nobody_was_asked_is_counted_and_put_right() -> None:
    found = apply_event(RUNS, synchronized(listed("a", resources=PINNED), listed("b")), {KEY: WANTED})
    assert found.todo == (Adopt(KEY, "a"), CountFailOpen(KEY, "b"), Correct(KEY, "b", WANTED, SHARES))
    assert todo(found.registry, synchronized(listed("b")), {KEY: WANTED}) == (Correct(KEY, "b", WANTED, SHARES),)


def test_what_began_and_has_no_promise_is_counted_and_decided_on() -> None:
    found = apply_event(Registry(), synchronized(listed("a")), {})
    assert found.todo == (CountFailOpen(KEY, "a"), Decide(KEY, "a", is_again=False))
    assert record_decision(found.registry, KEY, "a", None).todo == (Place(KEY, "a"),)


def test_of_two_that_began_the_later_one_is_decided_on_and_both_are_placed() -> None:
    found = apply_event(Registry(), synchronized(listed("a"), listed("b")), {})
    assert found.todo == (CountFailOpen(KEY, "a"), CountFailOpen(KEY, "b"), Decide(KEY, "b", is_again=False))
    assert record_decision(found.registry, KEY, "b", None).todo == (Place(KEY, "a"), Place(KEY, "b"))


def test_what_began_and_is_refused_stays_known() -> None:
    found = after(synchronized(listed("a")), refuse="no CPUs")
    assert [made.is_placed for made in found.entry(KEY).made] == [False]
    assert todo(found, synchronized(listed("a"))) == (Refuse(KEY, "a", "no CPUs", is_first=False),)
    assert todo(found, Retried("uid-p")) == (Decide(KEY, "a", is_again=False),)
    gone = after(called(Event.REMOVE_CONTAINER, "a"), NOBODY, registry=found)
    assert gone.entries == ()


def test_what_is_created_and_has_not_begun_is_not_counted() -> None:
    found = apply_event(Registry(), synchronized(listed("a", ContainerState.CREATED)), {KEY: WANTED})
    assert found.todo == (Correct(KEY, "a", WANTED, SHARES),)


def test_what_has_stopped_is_only_known() -> None:
    found = apply_event(Registry(), synchronized(listed("a", ContainerState.STOPPED)), {KEY: WANTED})
    assert found.todo == ()
    assert found.registry.entry(KEY).is_held


def test_what_is_not_listed_has_been_removed() -> None:
    found = apply_event(RUNS, synchronized(), {KEY: WANTED})
    assert found.todo == ()
    assert todo(found.registry, NOBODY) == (GiveBack(KEY),)


def test_a_promise_without_any_container_is_given_back() -> None:
    found = apply_event(Registry(), synchronized(), {KEY: WANTED})
    assert todo(found.registry, NOBODY) == (GiveBack(KEY),)


def test_what_nothing_is_promised_to_any_more_is_decided_on_anew() -> None:
    """The agent's state was lost, and what it knew of the runtime was not."""
    found = apply_event(RUNS, synchronized(listed("a", resources=PINNED)), {})
    assert found.todo == (Decide(KEY, "a", is_again=False),)
    refused = record_decision(found.registry, KEY, "a", "no CPUs").registry.entry(KEY)
    assert (refused.is_held, refused.asked, [made.is_placed for made in refused.made]) == (False, None, [False])


def test_a_container_of_no_listed_pod_is_none() -> None:
    assert apply_event(Registry(), synchronized(listed("a"), pods="q"), {}).todo == ()


def test_a_pod_without_a_uid_is_known_by_its_id() -> None:
    call = Call(Event.CREATE_CONTAINER, replace(box(), uid=""), container("a"))
    assert todo(Registry(), call) == (Decide(ContainerKey("box-p", "app"), "a", is_again=False),)


# Any events in any order


PODS, NAMES, SLOTS = ("p", "q", "r"), ("app", "side"), 4
AMOUNTS = (SHARES, NriResources(cpu_shares=1024))
EVENTS = (
    Event.CREATE_CONTAINER,
    Event.START_CONTAINER,
    Event.UPDATE_CONTAINER,
    Event.STOP_CONTAINER,
    Event.REMOVE_CONTAINER,
)


class Node(RuleBasedStateMachine):
    """A runtime that tells what it likes, when it likes; a node that carries out what is to be done, and reuses CPUs at once.

    Each slot stands for some CPUs. Processes begin only where the agent lets them, or (`begin_unasked`) while nobody is asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.slots: dict[ContainerKey, int] = {}
        """Promised."""
        self.pinned: dict[str, tuple[ContainerKey, int]] = {}
        """What the runtime was told when the container was made: later answers don't reach it."""
        self.running: dict[str, int | None] = {}
        """Containers with processes, and their slot; None: everywhere, for nobody was asked."""
        self.ids = [f"{pod}.{name}.{n}" for pod in PODS for name in NAMES for n in range(3)]

    def call(self, event: Event, container_id: str, amount: int = 0) -> Call:
        pod, name, _ = container_id.split(".")
        told = container(container_id, name, pod, resources=AMOUNTS[amount])
        is_update = event is Event.UPDATE_CONTAINER
        return Call(event, box(pod), told, AMOUNTS[amount] if is_update else None)

    def take(self, what: Happening, refuse: bool = False) -> None:
        wanted = {
            key: WantedPlacement(CpuSet.of(slot), exclusive_cpus=CpuSet.of(slot)) for key, slot in self.slots.items()
        }
        stepped = apply_event(self.registry, what, wanted)
        self.registry = stepped.registry
        for one in stepped.todo:
            self.do(one, refuse=refuse)

    def do(self, one: Todo, *, refuse: bool) -> None:
        match one:
            case Decide(key, container_id, is_again):
                assert is_again == (key in self.slots)
                free = sorted(set(range(SLOTS)) - set(self.slots.values()))
                is_refused = refuse or (not is_again and not free)
                if not is_refused:
                    self.slots.setdefault(key, free[0] if free else -1)
                decided = record_decision(self.registry, key, container_id, "no CPUs" if is_refused else None)
                self.registry = decided.registry
                for after_it in decided.todo:
                    self.do(after_it, refuse=refuse)
            case Place(key, container_id):
                self.pinned.setdefault(container_id, (key, self.slots[key]))
            case LetStart(key, container_id, rivals):
                is_free = not any(rival in self.running for rival in rivals)
                is_pinned = self.pinned.get(container_id) == (key, self.slots[key])  # its cpuset is read
                if is_free and is_pinned:
                    self.running[container_id] = self.slots[key]
            case Correct(key, container_id, _, _):
                # What began unasked leaves for its slot by and by: it is counted apart.
                self.pinned[container_id] = (key, self.slots[key])
            case GiveBack(key):
                del self.slots[key]
            case Refuse() | Adopt() | CountFailOpen() | CountIllegal():
                pass

    @rule(event=st.sampled_from(EVENTS), at=st.integers(0, 17), amount=st.integers(0, 1), refuse=st.booleans())
    def container_event(self, event: Event, at: int, amount: int, refuse: bool) -> None:
        self.take(self.call(event, self.ids[at], amount), refuse)

    @rule(at=st.integers(0, 17), amount=st.integers(0, 1))
    def create_and_begin(self, at: int, amount: int) -> None:
        """What mostly happens."""
        self.take(self.call(Event.CREATE_CONTAINER, self.ids[at], amount))
        self.take(self.call(Event.START_CONTAINER, self.ids[at], amount))

    @rule(
        pod=st.sampled_from(PODS),
        event=st.sampled_from([Event.RUN_POD_SANDBOX, Event.STOP_POD_SANDBOX, Event.REMOVE_POD_SANDBOX]),
    )
    def pod_event(self, pod: str, event: Event) -> None:
        self.take(Call(event, box(pod)))

    @rule(pod=st.sampled_from(PODS))
    def retry(self, pod: str) -> None:
        self.take(Retried(f"uid-{pod}"))

    @rule(at=st.integers(0, 17))
    def begin_unasked(self, at: int) -> None:
        self.running.setdefault(self.ids[at], None)

    @rule(at=st.integers(0, 17))
    def end(self, at: int) -> None:
        self.running.pop(self.ids[at], None)

    @rule()
    def look(self) -> None:
        self.take(Populated(frozenset(self.running)))

    @rule(extra=st.sets(st.integers(0, 17), max_size=3), amount=st.integers(0, 1))
    def synchronize(self, extra: set[int], amount: int) -> None:
        """All that runs is listed; maybe more."""
        listed_ids = sorted({*self.running, *(self.ids[n] for n in extra)})
        containers = []
        for one in listed_ids:
            slot = self.running.get(one)
            told = self.call(Event.CREATE_CONTAINER, one, amount).container
            assert told is not None
            has = told.resources if slot is None else replace(told.resources, cpus=CpuSet.of(slot))
            state = ContainerState.RUNNING if one in self.running else ContainerState.STOPPED
            containers.append(replace(told, resources=has, state=state))
        self.take(Synchronized(tuple(box(pod) for pod in PODS), tuple(containers)))

    @invariant()
    def nobody_shares_a_slot(self) -> None:
        used = [slot for slot in self.running.values() if slot is not None]
        assert len(used) == len(set(used)), self.running

    @invariant()
    def what_runs_in_a_slot_is_of_the_key_that_has_it(self) -> None:
        for container_id, slot in self.running.items():
            if slot is not None:
                pod, name, _ = container_id.split(".")
                assert self.slots.get(ContainerKey(f"uid-{pod}", name)) == slot

    @invariant()
    def the_registry_knows_what_is_promised(self) -> None:
        assert {entry.key for entry in self.registry.entries if entry.is_held} == set(self.slots)

    @invariant()
    def it_is_in_order(self) -> None:
        keys = [entry.key for entry in self.registry.entries]
        assert keys == sorted(set(keys))
        ids = [made.id for entry in self.registry.entries for made in entry.made]
        assert len(ids) == len(set(ids))

    def teardown(self) -> None:
        """All is removed, and nothing is left: by what the runtime lists, whatever it has told before."""
        self.running.clear()
        self.take(Synchronized())
        self.take(Populated(frozenset()))
        assert self.registry == Registry()
        assert self.slots == {}


TestNode = Node.TestCase
TestNode.settings = settings(stateful_step_count=60)


class Orderly(RuleBasedStateMachine):
    """A runtime that tells everything, in turn, but maybe twice: nothing is left even without Synchronize."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.given_back: list[ContainerKey] = []
        self.live: dict[str, str] = {}
        """Containers that are not removed yet, by id: the pod."""
        self.pods: set[str] = set()
        self.made = 0

    def take(self, what: Happening, times: int) -> None:
        for _ in range(times):
            stepped = apply_event(self.registry, what, {})
            self.registry = stepped.registry
            for one in stepped.todo:
                if isinstance(one, Decide):
                    self.registry = record_decision(self.registry, one.key, one.id, None).registry
                elif isinstance(one, GiveBack):
                    self.given_back.append(one.key)

    @rule(pod=st.sampled_from(PODS), times=st.integers(1, 2))
    def run_container(self, pod: str, times: int) -> None:
        self.made += 1
        name = f"c{self.made}"
        self.pods.add(pod)
        self.live[name] = pod
        for what in (
            Call(Event.RUN_POD_SANDBOX, box(pod)),
            create(name, pod),
            called(Event.START_CONTAINER, name, pod),
        ):
            self.take(what, times)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), times=st.integers(1, 2))
    def remove_container(self, data: st.DataObject, times: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        pod = self.live.pop(name)
        for event in (Event.STOP_CONTAINER, Event.REMOVE_CONTAINER):
            self.take(called(event, name, pod), times)

    @rule()
    def look(self) -> None:
        self.take(Populated(frozenset(self.live)), 1)

    def teardown(self) -> None:
        for pod in sorted(self.pods):
            self.take(Call(Event.STOP_POD_SANDBOX, box(pod)), 1)
            self.take(Call(Event.REMOVE_POD_SANDBOX, box(pod)), 2)
        self.take(Populated(frozenset()), 1)
        assert self.registry == Registry()


TestOrderly = Orderly.TestCase
TestOrderly.settings = settings(stateful_step_count=30)


def test_the_values_are_exported_as_they_are_saved() -> None:
    """Plain frozen values: two ways to one state are one state."""
    made = MadeContainer("a", "box-p", Stage.STARTED, RUNS.entries[0].made[0].asked, is_placed=True)
    assert RUNS.entries == (KeyEntry(KEY, (made,), is_held=True, asked=made.asked),)
    assert REFUSED.refused == (RefusedKey(KEY, made.asked, "no CPUs"),)
