"""Registry, answers and checks of starts together, against a runtime with cpusets: whatever fails, exclusive CPUs have one user."""

from typing import Any

from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nodeagent.core.domains.runtime.answers import Occupant, WantedPlacement, build_response, check_start
from nodeagent.core.domains.runtime.instructions import Decide, GiveBack, Happening, LetStart, Place, Populated
from nodeagent.core.domains.runtime.occupants import wanted_by_id
from nodeagent.core.domains.runtime.registry import ContainerKey, Registry, apply_event, record_decision
from nodeagent.core.model.idset import CpuSet
from nodeagent.core.model.nri import (
    Call,
    ContainerState,
    Event,
    NriContainer,
    NriResources,
    Sandbox,
    Synchronized,
)
from tests.support.shares import share_of

ALL = CpuSet.from_ids(range(8))
RESERVED = CpuSet.of(0)
SIZES = {"a": 2, "b": 3, "c": 1, "s": 0, "t": 0}
"""CPUs of their own; 0: they share."""


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry()
        self.own: dict[ContainerKey, CpuSet] = {}
        """Promised."""
        self.cpusets: dict[str, CpuSet] = {}
        """What the runtime has written, of all that it has."""
        self.running: set[str] = set()
        self.unasked: set[str] = set()
        """Began while nobody was asked, and has not been seen where it should be: the exception."""
        self.names: dict[str, str] = {}
        self.fails: st.DataObject | None = None

    # What the agent knows

    @property
    def pool(self) -> WantedPlacement:
        pool = ALL
        for cpus in self.own.values():
            pool -= cpus
        return WantedPlacement(pool)

    @property
    def wanted(self) -> dict[ContainerKey, WantedPlacement]:
        return {key: WantedPlacement(own, exclusive_cpus=own) if own else self.pool for key, own in self.own.items()}

    def occupants(self) -> list[Occupant]:
        wanted = wanted_by_id(self.registry, self.wanted, self.pool, frozenset(self.running))
        return [
            Occupant(one, self.cpusets[one], wanted.get(one), one, NriResources(cpus=self.cpusets[one]))
            for one in sorted(self.running)
        ]

    def call(self, event: Event, one: str) -> Call:
        name = self.names[one]
        box = Sandbox(f"box-{name}", f"uid-{name}", name, "default", (), (), "kubepods-podx.slice")
        return Call(event, box, self.told(one))

    def told(self, one: str, **more: Any) -> NriContainer:
        name = self.names[one]
        fields = {"state": ContainerState.CREATED, "resources": NriResources(cpu_shares=1024)} | more
        return NriContainer(
            id=one, sandbox_id=f"box-{name}", name="app", labels=(), annotations=(), pid=None, cgroups_path="",
            oom_score_adj=None, **fields,
        )  # fmt: skip

    # What it does

    def take(self, what: Happening) -> None:
        stepped = apply_event(self.registry, what, self.wanted)
        self.registry = stepped.registry
        todo = list(stepped.todo)
        while todo:
            match todo.pop(0):
                case Decide(key, one, _):
                    is_granted = self.allocate(key, SIZES[self.names[one]])
                    decided = record_decision(self.registry, key, one, None if is_granted else "no CPUs")
                    self.registry = decided.registry
                    todo[:0] = decided.todo
                case Place(key, one) if one not in self.running:
                    made = build_response(self.occupants(), created=(self.wanted[key], NriResources()))
                    assert made.answer.adjustment is not None
                    assert made.answer.adjustment.cpus
                    self.cpusets[one] = made.answer.adjustment.cpus
                    self.carry_out(made.answer.updates)
                case LetStart(key, one, rivals):
                    others = [other for other in self.occupants() if other.id != one]
                    starting = Occupant(one, self.cpusets[one], self.wanted[key], one)
                    if check_start(starting, others, rivals) is None:
                        self.running.add(one)
                case GiveBack(key):
                    del self.own[key]

    def allocate(self, key: ContainerKey, size: int) -> bool:
        if key not in self.own:
            free = sorted(self.pool.cpus - RESERVED)
            if len(free) < size:
                return False
            self.own[key] = CpuSet.from_ids(free[:size])
        return True

    def carry_out(self, updates: Any) -> None:
        """The runtime only logs those that fail."""
        assert self.fails is not None
        for update in updates:
            if not self.fails.draw(st.booleans()):
                assert update.resources.cpus
                self.cpusets[update.container_id] = update.resources.cpus

    # What happens

    @rule(name=st.sampled_from(sorted(SIZES)), data=st.data())
    def create(self, name: str, data: st.DataObject) -> None:
        self.fails = data
        one = f"{name}{len(self.names)}"
        self.names[one] = name
        self.take(self.call(Event.CREATE_CONTAINER, one))

    @precondition(lambda self: self.cpusets)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.fails = data
        waiting = sorted(set(self.cpusets) - self.running)
        if waiting:
            self.take(self.call(Event.START_CONTAINER, data.draw(st.sampled_from(waiting))))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), is_told=st.booleans(), is_removed=st.booleans())
    def end(self, data: st.DataObject, is_told: bool, is_removed: bool) -> None:
        one = data.draw(st.sampled_from(sorted(self.running)))
        self.running.discard(one)
        self.unasked.discard(one)
        if is_told:
            self.take(self.call(Event.STOP_CONTAINER, one))
        if is_removed:
            self.remove(one)

    @precondition(lambda self: self.cpusets)
    @rule(data=st.data())
    def remove_early(self, data: st.DataObject) -> None:
        """Of one whose processes may still be there."""
        self.take(self.call(Event.REMOVE_CONTAINER, data.draw(st.sampled_from(sorted(self.cpusets)))))

    @rule()
    def look(self) -> None:
        self.take(Populated(frozenset(self.running)))

    @rule(data=st.data())
    def push(self, data: st.DataObject) -> None:
        self.fails = data
        self.carry_out(build_response(self.occupants()).answer.updates)
        self.see()

    @rule(name=st.sampled_from(sorted(SIZES)))
    def begin_unasked(self, name: str) -> None:
        one = f"{name}{len(self.names)}"
        self.names[one] = name
        self.cpusets[one] = ALL
        self.running.add(one)
        self.unasked.add(one)

    @rule(data=st.data())
    def synchronize(self, data: st.DataObject) -> None:
        self.fails = data
        listed = tuple(
            self.told(
                one,
                state=ContainerState.RUNNING if one in self.running else ContainerState.CREATED,
                resources=NriResources(cpu_shares=1024, cpus=cpus),
            )
            for one, cpus in self.cpusets.items()
        )
        pods = {one.sandbox_id: self.call(Event.RUN_POD_SANDBOX, one.id).sandbox for one in listed}
        self.take(Synchronized(tuple(pods.values()), listed))
        self.carry_out(build_response(self.occupants()).answer.updates)
        self.see()

    def remove(self, one: str) -> None:
        self.take(self.call(Event.REMOVE_CONTAINER, one))
        self.cpusets.pop(one, None)

    def see(self) -> None:
        """What is where it should be, and alone if it should be, is no exception any more."""
        there = self.occupants()
        for one in there:
            if one.wanted is None:
                continue
            late = [other for other in there if other is not one and other.overdue & one.wanted.exclusive_cpus]
            if not one.overdue and not late:
                self.unasked.discard(one.id)

    # The judge: cpusets of what has processes

    @invariant()
    def exclusive_cpus_have_one_user(self) -> None:
        asked = self.running - self.unasked
        owners = {one: self.own.get(ContainerKey(f"uid-{self.names[one]}", "app")) for one in asked}
        for one, own in owners.items():
            if own and self.cpusets[one] == own:
                for other in asked - {one}:
                    assert self.cpusets[other].isdisjoint(own), (one, other, self.cpusets)

    def teardown(self) -> None:
        """Who ends is forgotten, and the rest settles: everybody where it should be."""
        self.running.clear()
        self.cpusets.clear()
        self.take(Synchronized())
        self.take(Populated(frozenset()))
        assert self.registry == Registry()
        assert self.own == {}


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=share_of(300), stateful_step_count=50)


def test_the_judge_finds_what_the_gate_would_not_have_let_begin() -> None:
    """The negative control: two that have begun without it."""
    node = Node()
    node.names = {"a0": "a", "s1": "s"}
    node.own = {ContainerKey("uid-a", "app"): CpuSet.of(2, 3)}
    node.cpusets = {"a0": CpuSet.of(2, 3), "s1": CpuSet.of(3, 4)}
    node.running = {"a0", "s1"}
    try:
        node.exclusive_cpus_have_one_user()
    except AssertionError:
        return
    raise AssertionError("it finds nothing")
