"""Whole turns under everything that can happen: manifests and processes come and go, the agent dies, others write into the cgroups.

The oracle knows no desired cgroups and no plan. It holds every single write and every single action to the promises as they were saved.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase as Generation, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from nodeagent.core.admission.managers import Managers, build, resume
from nodeagent.core.admission.node_rules import isolation
from nodeagent.core.admission.state_invariants import violations
from nodeagent.core.cgroups.exec_preconditions import find_obstacle
from nodeagent.core.cgroups.write_order import Change, GiveUnitBack, SetAttribute
from nodeagent.core.model.cgroup import Attribute, CpuMax, Partition, PartitionKind, UnitSettings
from nodeagent.core.model.cgroup_layout import ABOVE, BEST_EFFORT, BURSTABLE, cpuset_path, is_pinned, unit_at
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.core.model.pod import Pod, ResourceRequirements, RestartPolicy
from nodeagent.core.model.promises import Isolation
from nodeagent.core.model.state import NodeState, Origin, Phase, PodEntry, run_id as id_of
from nodeagent.core.resources.cpu.holdings import default_set, exclusive_cpus, own_set_of
from nodeagent.core.resources.cpu.resource import CpuResource
from nodeagent.core.turn.actions import Launch
from nodeagent.core.turn.lifecycle import MIN_GRACE_MS
from nodeagent.core.turn.pod_sources import Manifest
from nodeagent.formats.checkpoint.node_state import decode_state
from tests.support.node_model import Agent, CrashError, Group, Machine, Process, Unit
from tests.support.pods import app, burstable, cgroup_only, exclusive, init, pod, sidecar, unit
from tests.support.shares import share_of
from tests.support.world import SMALL, Node, node

T = TypeVar("T")
Overlaps = Mapping[tuple[str, str, str], CpuSet]
"""(who is there, whose CPUs they are, whether they are promised to that one or it uses them now) → the CPUs."""


@lru_cache(maxsize=64)
def decoded(content: bytes) -> NodeState:
    """What a saved state says; NodeStateError if it can't be read."""
    return decode_state(content).state


class WatchedAgent(Agent):
    """The model's agent, with its world judged after each single thing it does."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine)
        self._read_from, self._read = self.saved, self.state
        self.excused: Overlaps = {}
        """What others had brought about when the turn began: it may only shrink."""
        self.put_off: set[str] = set()
        """Runs of which this process has put SIGKILL off."""
        self.forced: set[str] = set()
        """Cgroups into which somebody put a process by force: it has that container's CPUs, and so some of those before it in the pod."""

    def turn(self) -> Any:
        self.excused = self.overlaps()
        self.machine.now_ms += 1
        before = self.state
        outcome = super().turn()
        self._judge_endings(before)
        return outcome

    def _save(self, state: NodeState) -> None:
        """Whoever is adopted may not have been alone until now, as nobody knew whose its CPUs were."""
        known = self.cpus_of(self.promised())
        super()._save(state)
        found = {pair: cpus for pair, cpus in self.overlaps().items() if pair[1] not in known}
        self.excused = {**self.excused, **found}

    def restart(self) -> None:
        super().restart()
        self.put_off.clear()

    def _judge_endings(self, before: NodeState) -> None:
        """SIGKILL is put off once, for no longer than a grace period lasts, and else comes in time, whatever signals fail."""
        machine = self.machine
        ends = {id_of(entry, status): status.stop_by_ms for entry in before.entries for status in entry.containers}
        for entry in self.state.entries if machine.launcher_answers else ():
            longest_ms = max(entry.pod.termination_grace_seconds * 1000, MIN_GRACE_MS)
            for status in entry.containers:
                name, path, end_ms = id_of(entry, status), entry.container_path(status.name), status.stop_by_ms
                if end_ms is None:
                    continue
                assert end_ms <= machine.now_ms + longest_ms, f"{name} has more than its grace period left"
                if end_ms > (ends.get(name) or end_ms):
                    assert name not in self.put_off, f"the end of {name} is put off again and again"
                    self.put_off.add(name)
                is_there = path in machine.groups and machine.is_populated(path)
                hangs = is_there and machine.groups[path].is_unkillable
                assert end_ms > machine.now_ms or not is_there or hangs, f"{name} is not killed in time"

    def promised(self) -> NodeState:
        """What a restart would find."""
        if self._read_from is not self.saved:
            self._read_from, self._read = self.saved, decoded(self.saved)
        return self._read

    def cpus_of(self, state: NodeState) -> dict[str, tuple[CpuSet, CpuSet]]:
        """Every container's cgroup: the CPUs it is to run on, and those of them that are its own."""
        of, online = self.machine.node, self.machine.node.kernel.online
        pool = default_set(state.promises) & online if of.managers.providers.of(CpuResource).manager.static else online
        found = {}
        for entry in state.entries:
            for container in entry.pod.containers if entry.is_active else ():
                own = (own_set_of(state.promises, entry.pod.uid, container.name) or CpuSet()) & online
                both = own | pool if container.is_mixed else own or pool
                found[entry.container_path(container.name)] = (both, own)
        return found

    def overlaps(self) -> Overlaps:
        """Who may run on whose CPUs."""
        machine = self.machine
        units = self._units()
        running = {p: machine.effective(p) for p in machine.populated() if not machine.is_frozen(p)} | units
        found = {}
        for owner, (_, own) in self.cpus_of(self.promised()).items():
            is_there = owner in machine.groups or (owner in units and machine.units[unit_at(owner)].is_settled)
            if not own or not is_there:
                continue
            for path, cpus in running.items():
                shared = cpus & own
                if path == owner or not shared or self._is_pool_of_one_pod(path, owner):
                    continue
                if _pod_of(path) == _pod_of(owner) and self.forced & {path, owner}:
                    continue
                # Within a pod those after an init container get its CPUs, and wait for its end.
                if machine.is_populated(owner) and _pod_of(path) != _pod_of(owner):
                    found[path, owner, "promised"] = shared
                found[path, owner, "used"] = shared & running.get(owner, CpuSet())
        return {pair: cpus for pair, cpus in found.items() if cpus}

    def _units(self) -> dict[str, CpuSet]:
        """Where units run that have been moved, or will if they start: before, and once they are to go back, they are the host's."""
        units = self.machine.units
        return {
            entry.container_path(container.name): self.machine.granted_to_unit(container.unit)
            for entry in self.promised().entries
            if entry.pins_units and entry.is_active and entry.deleting_since_ms is None
            for container in entry.pod.containers
            if container.unit in units and units[container.unit].is_placed
        }

    def _is_pool_of_one_pod(self, path: str, owner: str) -> bool:
        state = self.promised()
        levels = {
            e.container_path(c.name): (e.pod.uid, isolation(self.machine.node.managers, state.promises, e.pod, c.name))
            for e in state.entries
            for c in e.pod.containers
        }
        return path in levels and levels[path] == levels[owner] and levels[path][1] is Isolation.POD

    def apply(self, change: Change) -> None:
        before = self.machine.effective(change.path) if change.path in self.machine.groups else CpuSet()
        if is_pinned(change.path):
            self._judge_unit(change)
        elif isinstance(change, SetAttribute) and change.attribute is Attribute.CPUSET_CPUS:
            if change.path not in self.cpus_of(self.promised()):
                self._judge_pod(change)
                super().apply(change)
                return
            cpus, own = self.cpus_of(self.promised())[change.path]
            assert isinstance(change.value, CpuSet)
            assert change.value <= cpus, f"{change.path} gets {change.value}, of which the saved state says {cpus}"
            self._expect_nobody_on(change.value & own - before, change.path)
        super().apply(change)

    def _judge_unit(self, change: Change) -> None:
        """It is on its CPUs, the pool's, or, where there is none, the reserved ones; until it gets its own, it only leaves others'."""
        if isinstance(change, SetAttribute) and change.attribute is Attribute.CPUSET_CPUS:
            cpus, own = self.cpus_of(self.promised())[change.path]
            assert isinstance(change.value, CpuSet)
            wanted = self.cpus_of(self.promised()).items()
            others = (other for path, (_, other) in wanted if path != change.path)
            is_leaving = bool(own) and not change.grants and all(map(change.value.isdisjoint, others))
            assert is_leaving or change.value <= (cpus or self.machine.node.managers.reserved)
            if change.grants:
                self._expect_nobody_on(own, change.path)

    def _judge_pod(self, change: SetAttribute) -> None:
        """A pod's cgroup holds its containers' CPUs and the shared pool."""
        state = self.promised()
        others = [e for e in state.entries if e.pod_path != change.path]
        foreign = CpuSet()
        for entry in others:
            for container in entry.pod.containers:
                foreign |= own_set_of(state.promises, entry.pod.uid, container.name) or CpuSet()
        assert isinstance(change.value, CpuSet)
        assert not change.value & foreign, f"{change.path} gets {change.value & foreign} of other pods"

    def _expect_nobody_on(self, cpus: CpuSet, owner: str) -> None:
        machine = self.machine
        running = {path: machine.effective(path) for path in machine.populated() if not machine.is_frozen(path)}
        for path, where in (running | self._units()).items():
            if _pod_of(path) != _pod_of(owner):
                there = where & cpus
                assert not there, f"{owner} is granted {there} before {path} has left"

    def check(self) -> None:
        now = self.overlaps()
        for (path, owner, how), cpus in now.items():
            worse = cpus - self.excused.get((path, owner, how), CpuSet())
            assert not worse, f"{path} may run on {worse} of {owner} ({how}), by our own doing"
        self.excused = now


def _pod_of(path: str) -> str:
    return path.rpartition("/")[0]


class WatchedMachine(Machine):
    def __init__(self, of: Node) -> None:
        super().__init__(of)
        self.agent: WatchedAgent | None = None

    def _launch(self, action: Launch) -> None:
        assert self.agent is not None
        cpus, _ = self.agent.cpus_of(self.agent.promised())[action.path]
        assert self.effective(action.path) == cpus, (
            f"{action.path} is started on {self.effective(action.path)}, not on {cpus}"
        )
        super()._launch(action)


# What can come

FILES = ("a.yaml", "b.yaml", "c.yaml", "d.yaml")
SOURCES = st.sampled_from(FILES)
AMOUNTS = {
    "none": ResourceRequirements(),
    "burst": burstable(),
    "limited": burstable("500m", "1500m"),
    "0.5": exclusive("500m"),
    "1.5": exclusive("1500m"),
    "1": exclusive("1"),
    "2": exclusive("2"),
    "3": exclusive("3"),
    "1.5+": exclusive("1500m"),
    "2+": exclusive("2"),
    "burst+": burstable("1200m", "2"),
}
"""A `+`: one of the CPUs is exclusive and the rest shared, by annotation."""
MAKE = {"init": init, "side": sidecar, "app": app, "slot": cgroup_only}
Recipe = list[tuple[str, str]]
"""(kind, amount) of each container."""
POLICIES = st.sampled_from(RestartPolicy)


def recipes(sizes: Iterable[str]) -> st.SearchStrategy[Recipe]:
    first = st.lists(st.tuples(st.sampled_from(["init", "side"]), st.sampled_from([*sizes])), max_size=2)
    kinds = st.sampled_from(["app", "app", "app", "app", "slot"])
    apps = st.lists(st.tuples(kinds, st.sampled_from([*sizes])), min_size=1, max_size=2)
    return st.tuples(first, apps).map(lambda both: [*both[0], *both[1]])


RECIPES = recipes(["1", "1", "2"]) | recipes(["1", "2", "0.5"]) | recipes(["1", "2+", "1.5+"]) | recipes(AMOUNTS)
"""Mostly guaranteed pods: one container that isn't makes its pod burstable, and all of it shares but what is annotated."""


def made(name: str, uid: str, recipe: Recipe, **more: Any) -> Pod:
    containers = [
        MAKE[kind](f"mixed{n}", resources=AMOUNTS[size], exclusive_cpus=1)
        if size.endswith("+")
        else MAKE[kind](f"{kind}{n}", resources=AMOUNTS[size])
        for n, (kind, size) in enumerate(recipe)
    ]
    return pod(name, *containers, uid=uid, **more)


NODES = {
    "static": node(SMALL),
    "strict": node(SMALL, reserved="0-1,4-5", cpu_manager_policy_options=(("strict-cpu-reservation", "true"),)),
    "cores": node(SMALL, cpu_manager_policy_options=(("full-pcpus-only", "true"),)),
    "none": node(SMALL, cpu_manager_policy="none", reserved_system_cpus=CpuSet()),
    "partitions": node(SMALL, config={"host_isolation": "partition"}),
}
CPUS = st.integers(1, 255).map(CpuSet)
PICKS = st.integers(0, 15)
UNITS = st.sampled_from(["db.service", "web.service"])
PINNED = ("1", "2", "3", "0.5", "burst", "2+", "2~", "3~")
COUNTS = st.integers(0, 2)
TURNS = st.integers(1, 3)
WRITES = st.one_of(
    CPUS.map(lambda cpus: (Attribute.CPUSET_CPUS, cpus)),
    st.just((Attribute.CPUSET_MEMS, NumaSet.of(0))),
    st.integers(1, 10_000).map(lambda weight: (Attribute.CPU_WEIGHT, weight)),
    st.just((Attribute.CPU_MAX, CpuMax(1000, 100_000))),
    st.booleans().map(lambda frozen: (Attribute.FREEZE, frozen)),
)


def picked(items: Sequence[T], pick: int) -> T | None:
    return items[pick % len(items)] if items else None


def pinning(source: str, name: str, size: str) -> Pod:
    """A pod that stands for a unit, and may give back its CPUs while that isn't active."""
    more = {"exclusive_cpus": 1} if size.endswith("+") else {}
    uid = f"uid-{source[0]}-{name}"
    return pod(source[0], unit(name, resources=AMOUNTS[size.strip("~")], **more), uid=uid, gives_back="~" in size)


class Turns(RuleBasedStateMachine):
    """One node's life."""

    @initialize(
        name=st.sampled_from(["static", *NODES]),
        pods=st.lists(st.tuples(RECIPES, POLICIES), max_size=4),
        pinned=st.sampled_from(["", "", *PINNED]),
    )
    def begin(self, name: str, pods: list[tuple[Recipe, RestartPolicy]], pinned: str = "") -> None:
        self.machine = WatchedMachine(NODES[name])
        self.machine.units = {"db.service": Unit(), "web.service": Unit()}
        self.agent = WatchedAgent(self.machine)
        self.machine.agent = self.agent
        self.files: dict[str, Pod] = {}
        for source, (recipe, policy) in zip(FILES, pods, strict=False):
            self.files[source] = made(source[0], f"uid-{source[0]}", recipe, restart_policy=policy)
        if pinned:
            self.files["a.yaml"] = pinning("a.yaml", "db.service", pinned)
        self.publish()
        self.agent.rest()

    def _move(self, source: str, recipe: Recipe) -> None:
        """Take a manifest away, or write one where there is none."""
        if self.files.pop(source, None) is None:
            self.files[source] = made(source[0], f"uid-{source[0]}", recipe)
        self.publish()

    def _turns(self, count: int) -> None:
        for _ in range(count):
            self.agent.turn()

    # Manifests

    def publish(self) -> None:
        readable = {s: p for s, p in sorted(self.files.items()) if s not in self.agent.unreadable}
        self.agent.wanted = tuple(
            Manifest(p, Origin(s)) for s, p in readable.items() if p.full_name not in self.agent.misspelt
        )

    @rule(
        source=SOURCES,
        other_name=st.sampled_from(["", "", "", "", "a"]),
        uid=st.sampled_from(["", "", "uid-1"]),
        recipe=RECIPES,
        policy=POLICIES,
        grace_seconds=st.sampled_from([0, 30]),
        turns=COUNTS,
    )
    def write_manifest(
        self,
        source: str,
        other_name: str,
        uid: str,
        recipe: Recipe,
        policy: RestartPolicy,
        grace_seconds: int,
        turns: int,
    ) -> None:
        name = other_name or source[0]
        more = {"restart_policy": policy, "termination_grace_seconds": grace_seconds}
        self.files[source] = made(name, uid or f"uid-{name}", recipe, **more)
        self.agent.unreadable -= {source}
        self.publish()
        self._turns(turns)

    @rule(source=SOURCES, turns=COUNTS)
    def remove_manifest(self, source: str, turns: int) -> None:
        self.files.pop(source, None)
        self.agent.unreadable -= {source}
        self.publish()
        self._turns(turns)

    @rule(source=SOURCES, whole=st.booleans())
    def spoil_manifest(self, source: str, *, whole: bool) -> None:
        if source not in self.files:
            return
        if whole:
            self.agent.unreadable |= {source}
        else:
            self.agent.misspelt |= {self.files[source].full_name}
        self.publish()
        before = self._ending()
        self._turns(1)
        kept = {e.pod.uid for e in self.agent.state.entries if e.origin.name == source and e.pod == self.files[source]}
        assert self._ending().isdisjoint(kept - before), "a pod whose manifest was spoilt stays as it is"

    def _ending(self) -> set[str]:
        return {e.pod.uid for e in self.agent.state.entries if e.deleting_since_ms is not None}

    @rule()
    def repair(self) -> None:
        for group in self.machine.groups.values():
            group.is_unkillable = False
        self.machine.is_deaf = False
        self.agent.unreadable, self.agent.misspelt = frozenset(), frozenset()
        self.publish()

    @rule()
    def retry(self) -> None:
        self.agent.retried = frozenset(e.pod.uid for e in self.agent.state.entries)
        self._turns(1)

    @rule(pick=PICKS, turns=COUNTS)
    def release(self, pick: int, turns: int) -> None:
        entry = picked(self.agent.state.entries, pick)
        if entry is not None:
            self.agent.released = frozenset({entry.pod.uid})
            self._turns(max(turns, 1))  # the next turn ends it; without one, the next rule would

    # Units of systemd's

    @rule(source=SOURCES, name=UNITS, size=st.sampled_from(PINNED), turns=COUNTS)
    def pin(self, source: str, name: str, size: str, turns: int) -> None:
        self.files[source] = pinning(source, name, size)
        self.agent.unreadable -= {source}
        self.publish()
        self._turns(turns)

    @rule(name=UNITS, is_there=st.booleans(), is_active=st.booleans(), cpus=st.just(CpuSet()) | CPUS, turns=COUNTS)
    def meet_unit(self, name: str, cpus: CpuSet, turns: int, *, is_there: bool, is_active: bool) -> None:
        """systemd comes to know a unit, with whatever its own file says, or no longer does."""
        self.machine.units.pop(name, None)
        if is_there:
            self.machine.units[name] = Unit(UnitSettings(cpus), is_active)
        self._turns(turns)

    @rule(name=UNITS, is_active=st.booleans(), cpus=st.none() | CPUS, turns=COUNTS)
    def meddle_with_unit(self, name: str, cpus: CpuSet | None, turns: int, *, is_active: bool) -> None:
        """Others start or end it, or set its CPUs."""
        there = self.machine.units.get(name)
        if there is not None:
            there.is_active = is_active
            there.settings = there.settings if cpus is None else replace(there.settings, allowed_cpus=cpus)
            self._turns(turns)

    @rule(name=UNITS, what=st.sampled_from([GiveUnitBack, Attribute.CPUSET_CPUS]), source=SOURCES, turns=TURNS)
    def turn_while_systemd_refuses(self, name: str, what: type | Attribute, source: str, turns: int) -> None:
        self.files.pop(source, None)
        self.publish()
        paths = {
            entry.container_path(c.name)
            for entry in self.agent.state.entries
            for c in entry.pod.containers
            if c.unit == name
        }
        self.machine.broken |= dict.fromkeys(((path, what) for path in paths), "systemd has not answered for 5 s")
        self._turns(turns)
        self._end_problem()

    # Processes

    @rule(
        pick=PICKS,
        how=st.sampled_from([0, 0, 1, "killed", "oom"]),
        leaving=st.integers(0, 1),
        hangs=st.booleans(),
        turns=COUNTS,
    )
    def end_process(self, pick: int, how: int | str, leaving: int, turns: int, *, hangs: bool) -> None:
        """A container's process ends; what it leaves behind may hang in the kernel."""
        run_id = picked(self.machine.running(), pick)
        if run_id is not None:
            self.machine.groups[self.machine.path_of(run_id)].is_unkillable = hangs and bool(leaving)
        match how:
            case _ if run_id is None:
                return
            case int():
                self.machine.exit(run_id, how, leaving=leaving)
            case "killed":
                self.machine.exit(run_id, signal=11, leaving=leaving)
            case _:
                self.machine.oom_kill(run_id)
        self._turns(turns)

    @rule(pick=PICKS, rounds=st.integers(1, 3))
    def end_pod(self, pick: int, rounds: int) -> None:
        """All processes of a pod end well, and so do those that come after them."""
        entry = picked(self.agent.state.entries, pick)
        for _ in range(rounds):
            for run_id in self.machine.running():
                if entry is not None and self.machine.path_of(run_id).startswith(entry.pod_path + "/"):
                    self.machine.exit(run_id)
            self._turns(1)

    @rule(is_deaf=st.booleans())
    def lose_signals(self, *, is_deaf: bool) -> None:
        """SIGTERM fails, or is sent again."""
        self.machine.is_deaf = is_deaf

    @rule(pick=PICKS, is_unkillable=st.booleans())
    def make_stubborn(self, pick: int, *, is_unkillable: bool) -> None:
        path = picked(self.machine.populated(), pick)
        if path is None:
            return
        group = self.machine.groups[path]
        group.processes = [replace(process, is_stubborn=True) for process in group.processes]
        group.is_unkillable = is_unkillable

    @rule(pick=PICKS, stubborn=st.booleans(), turns=COUNTS)
    def enter(self, pick: int, turns: int, *, stubborn: bool) -> None:
        """Somebody's process enters: a container without a command if `exec` lets it, any other by force."""
        path = picked(self._containers(), pick)
        if path is None:
            return
        if "slot" not in path:
            self.machine.enter(path, stubborn=stubborn)
            self.agent.forced.add(path)
        elif self._is_open(path):
            self.agent.excused = self.agent.overlaps()
            self.machine.enter(path, stubborn=stubborn)
            self.agent.check()
        self._turns(turns)

    def _is_open(self, path: str) -> bool:
        """Ask as `nodeagent exec` does."""
        wanted, observed = self.agent.desired_cgroups(), self.machine.observed()
        return any(
            find_obstacle(entry, c.name, desired=wanted, observed=observed, used_below=()) is None
            for entry in self.agent.state.entries
            for c in entry.pod.containers
            if entry.container_path(c.name) == path
        )

    @rule(is_there=st.booleans(), cpus=CPUS, turns=COUNTS)
    def stray(self, cpus: CpuSet, turns: int, *, is_there: bool) -> None:
        """A cgroup that no pod owns, with or without a process."""
        self.machine.groups["poduid-stray"] = Group(
            {Attribute.CPUSET_CPUS: cpus}, set(), [Process(None)] if is_there else []
        )
        self._turns(turns)

    @rule(seconds=st.sampled_from([1, 10, 40, 1000]), turns=COUNTS)
    def pass_time(self, seconds: int, turns: int) -> None:
        self.machine.now_ms += seconds * 1000
        self._turns(turns)

    # The machine, and who else has his fingers in it

    def _containers(self) -> list[str]:
        return sorted(p for p in self.machine.groups if p.rpartition("/")[2][:-1] in MAKE)

    def _coming(self) -> list[str]:
        """Where the containers of the manifests are, or will be."""
        places = {entry.pod: entry.pod_path for entry in self.agent.state.entries}
        names = ("", BURSTABLE + "/", BEST_EFFORT + "/")
        new = [f"{name}pod{p.uid}" for p in self.files.values() if p not in places for name in names]
        return [f"{above}/{kind}{n}" for above in (*places.values(), *new) for kind in MAKE for n in range(2)]

    @rule(pick=PICKS, write=WRITES, turns=COUNTS)
    def drift(self, pick: int, write: tuple[Attribute, Any], turns: int) -> None:
        path = picked(self._containers(), pick)
        if path is not None:
            self.machine.write(path, *write)
        self._turns(turns)

    @rule(pick=PICKS, cpus=st.just(CpuSet()) | CPUS, kind=st.sampled_from(PartitionKind), turns=COUNTS)
    def meddle_with_partitions(self, pick: int, cpus: CpuSet, kind: PartitionKind, turns: int) -> None:
        if self.machine.has_partitions:
            path = picked([ABOVE, *sorted(self.machine.groups)], pick)
            assert path is not None
            self.machine.write(path, Attribute.CPUSET_CPUS_EXCLUSIVE, cpus)
            if path not in {ABOVE, ""}:
                self.machine.write(path, Attribute.CPUSET_CPUS_PARTITION, Partition(kind))
        self._turns(turns)

    @rule(online=st.just(255) | st.integers(0, 127).map(lambda bits: bits << 1 | 1), turns=COUNTS)
    def plug(self, online: int, turns: int) -> None:
        of = self.machine.node
        self.machine.node = replace(of, kernel=replace(of.kernel, online=CpuSet(online)))
        self._turns(turns)

    # The agent

    @rule(turns=TURNS)
    def turn(self, turns: int) -> None:
        self._turns(turns)

    @rule(
        problem=st.sampled_from(["launcher", "disk", "directory", "part"]), source=SOURCES, recipe=RECIPES, turns=TURNS
    )
    def turn_in_problem(self, problem: str, source: str, recipe: Recipe, turns: int) -> None:
        self._move(source, recipe)
        self.machine.launcher_answers, self.agent.disk_is_full = problem != "launcher", problem == "disk"
        before = self._ending()
        if problem in {"directory", "part"}:
            self.agent.is_blind, self.agent.is_partial = problem == "directory", problem == "part"
            self.agent.wanted = ()
        self._turns(turns)
        if problem in {"directory", "part"}:
            assert self._ending() <= before, "a directory that is unreadable, or read in part, ends no pod"
        self._end_problem()

    @rule(
        file=st.sampled_from(
            [
                Attribute.CPUSET_CPUS,
                Attribute.CPUSET_CPUS,
                Attribute.FREEZE,
                Attribute.MEMORY_MAX,
                Attribute.CPUSET_CPUS_EXCLUSIVE,
                Attribute.CPUSET_CPUS_PARTITION,
            ]
        ),
        which=st.sampled_from(["old", "old", "new"]) | PICKS,
        source=SOURCES,
        recipe=RECIPES,
        turns=TURNS,
    )
    def turn_with_failing_writes(
        self, file: Attribute, which: str | int, source: str, recipe: Recipe, turns: int
    ) -> None:
        """The kernel takes no value for a file: of the pods and containers that are there, of containers that come, or of one."""
        self._move(source, recipe)
        paths = self._coming() if which == "new" else self._containers()
        if which == "old":
            paths += sorted({path.rpartition("/")[0] for path in paths} | {cpuset_path(path) for path in paths})
        if isinstance(which, int):
            paths = [paths[which % len(paths)]] if paths else []
        self.machine.broken |= {(path, file): "Device or resource busy" for path in paths}
        self._turns(turns)
        self._end_problem()

    def _end_problem(self) -> None:
        self.machine.launcher_answers, self.agent.disk_is_full = True, False
        self.agent.is_blind = self.agent.is_partial = False
        self.machine.broken.clear()
        self.publish()

    @rule(source=SOURCES, recipe=RECIPES, effects=st.integers(0, 20))
    def die_in_a_turn(self, source: str, recipe: Recipe, effects: int) -> None:
        """It dies while it ends a pod, or takes one on."""
        self._move(source, recipe)
        self.agent.dies_at = self.agent.effects + effects
        with suppress(CrashError):
            self.agent.turn()
        self.restart()

    @rule()
    def restart(self) -> None:
        promises = self.agent.promised().promises
        of = self.machine.node
        managers = build(of.managers.topology, of.config.placement)
        assert isinstance(managers, Managers)
        self.machine.node = replace(of, managers=managers)
        self.agent.restart()
        assert self.agent.state.promises == promises
        assert resume(managers, promises) == promises, "a restart changes no promise"

    @rule()
    def calm_down(self) -> None:
        """Everything outside is right again: in the end the cgroups hold what is promised, and what can run runs."""
        machine, agent = self.machine, self.agent
        self._end_problem()
        self.repair()
        self.plug(255, turns=0)
        if "poduid-stray" in machine.groups:
            machine.groups["poduid-stray"].processes = []
        agent.settle()
        self._expect_rest()

    def _expect_rest(self) -> None:
        machine, agent = self.machine, self.agent
        assert agent.overlaps() == {}
        reserved = machine.node.managers.reserved
        desired_by_path = {w.path: w for w in agent.desired_cgroups()}
        assert set(machine.groups) == {path for path in desired_by_path if not is_pinned(path)}
        observed = agent.observed()
        for path, want in desired_by_path.items():
            if is_pinned(path) and path not in observed:
                continue
            for attribute, value in want.attributes:
                assert observed[path].get(attribute) == value, f"{path}: {attribute.value}"
            if want.is_leaf and not is_pinned(path):
                assert machine.is_frozen(path) == want.is_starved, path
        for path, (cpus, _) in agent.cpus_of(agent.state).items():
            if is_pinned(path):
                assert path not in observed or observed[path].unit is not None
                assert path not in observed or observed[path].get(Attribute.CPUSET_CPUS) == (cpus or reserved)
                continue
            assert desired_by_path[path].is_starved or machine.effective(path) == cpus, path
        self._expect_pods()
        writes, saves = len(machine.writes), agent.saves
        agent.turn()
        assert (len(machine.writes), agent.saves) == (writes, saves), "an idle turn writes nothing"

    def _expect_pods(self) -> None:
        agent = self.agent
        names = {m.pod.full_name for m in agent.wanted}
        for entry in agent.state.entries:
            assert entry.pod.full_name in names, f"{entry.pod.full_name} has no manifest"
            assert entry.deleting_since_ms is None
            asked = entry.pod if entry.refused_change is None or not entry.is_active else entry.refused_change.pod
            assert asked in [m.pod for m in agent.wanted]
            cpus = agent.cpus_of(agent.state)
            starved = [c for c in entry.pod.containers if not cpus.get(entry.container_path(c.name), (CpuSet(),))[0]]
            if entry.phase in {Phase.RUNNING, Phase.PENDING} and not starved:
                left = [
                    c.name for c, s in entry.pairs() if c.command and not s.is_running and self._is_there(entry, c.name)
                ]
                assert left == [], f"{entry.pod.name} has leftovers in {left}"
                running = [s for c, s in entry.pairs() if s.is_running and c.command]
                assert running or not all(c.command for c in entry.pod.containers), f"{entry.pod.name} does nothing"

    def _is_there(self, entry: PodEntry, name: str) -> bool:
        return self.machine.is_populated(entry.container_path(name))

    # What always holds

    @invariant()
    def the_saved_state_is_whole(self) -> None:
        agent, managers = self.agent, self.machine.node.managers
        state = agent.promised()
        assert state == agent.state
        assert violations(managers, state) == ()
        if not managers.providers.of(CpuResource).manager.static:
            assert exclusive_cpus(state.promises) == CpuSet()
            return
        is_strict = managers.providers.of(CpuResource).manager.options.strict_cpu_reservation
        expected = managers.topology.online - exclusive_cpus(state.promises)
        expected -= managers.reserved if is_strict else CpuSet()
        assert default_set(state.promises) == expected


# Lives that chance seldom leads


def alive(name: str, *recipes: Recipe) -> Turns:
    life = Turns()
    life.begin(name, [(recipe, RestartPolicy.ALWAYS) for recipe in recipes])
    return life


def test_nobody_starts_on_cpus_that_another_cannot_be_made_to_leave() -> None:
    life = alive("static", [("app", "none")])
    life.turn_with_failing_writes(Attribute.CPUSET_CPUS, "old", "b.yaml", [("app", "2")], turns=2)
    assert life.machine.running_containers() == ("poduid-a/app0",)
    life.calm_down()
    assert life.machine.running_containers() == ("poduid-a/app0", "poduid-b/app0")


def test_nobody_starts_on_cpus_that_an_init_container_left_a_hanging_process_on() -> None:
    life = alive("static", [("init", "2"), ("app", "2")])
    life.end_process(0, 0, leaving=1, turns=2, hangs=True)
    assert life.machine.running_containers() == ()
    life.calm_down()
    assert life.machine.running_containers() == ("poduid-a/app1",)


def test_nobody_thaws_on_cpus_of_another() -> None:
    """All its CPUs went offline and it starved; then there is one again, and its cpuset can't be written."""
    life = alive("strict", [("app", "2")], [("app", "1")])
    life.plug(1, turns=2)
    assert life.machine.is_frozen("poduid-a/app0")
    life.plug(1 | 1 << 3 | 1 << 7, turns=0)
    life.machine.broken["poduid-a/app0", Attribute.CPUSET_CPUS] = "Device or resource busy"
    life.turn(2)
    assert life.machine.is_frozen("poduid-a/app0")
    life.calm_down()
    assert not life.machine.is_frozen("poduid-a/app0")


@pytest.mark.parametrize("config", ["static", "strict"])
@pytest.mark.parametrize("withheld", [False, True], ids=["offline", "withheld"])
def test_no_loss_of_cpus_drives_anybody_onto_another_pods(config: str, *, withheld: bool) -> None:
    """Whichever go, as long as a reserved one is left: at that moment, before the agent has done anything."""
    life = alive(config, [("app", "1")], [("app", "2"), ("app", "1")], [("app", "none")])
    life.turn(2)
    machine, of = life.machine, life.machine.node
    assert len(machine.running_containers()) >= 3
    for left in map(CpuSet, range(1, 256, 2)):
        if withheld:
            machine.withheld = CpuSet(255) - left
        else:
            machine.node = replace(of, kernel=replace(of.kernel, online=left))
        driven = {key: cpus for key, cpus in life.agent.overlaps().items() if _pod_of(key[0]) != _pod_of(key[1])}
        assert not driven, f"with CPUs {left}"


def test_who_is_put_into_a_container_that_is_still_to_start_gets_its_cpus() -> None:
    """It was moved away from them, and comes back: those before it in the pod have them for the time being."""
    life = alive("static", [("app", "1")], [("init", "1"), ("app", "1")])
    life.enter(1, turns=0, stubborn=False)
    life.drift(1, (Attribute.CPUSET_CPUS, CpuSet.of(0)), turns=1)
    life.calm_down()


def test_nobody_enters_before_an_init_container_has_ended_though_its_cpus_are_away() -> None:
    """Both are in the shared pool then, and would come back to the same CPU."""
    life = alive("static")
    life.plug(1, turns=0)
    life.files["a.yaml"] = made("a", "uid-a", [("init", "1"), ("slot", "1")])
    life.publish()
    life.turn(1)
    life.enter(1, turns=0, stubborn=False)
    assert life.machine.populated() == ("poduid-a/init0",)
    life.calm_down()
    life.end_process(0, 0, leaving=0, turns=1, hangs=False)
    life.enter(1, turns=0, stubborn=False)
    assert life.machine.populated() == ("poduid-a/slot1",)


def test_two_that_somebody_swapped_come_home_one_after_the_other() -> None:
    life = alive("static", [("app", "2")], [("app", "2")])
    first, second = (life.machine.groups[f"poduid-{name}/app0"].values for name in "ab")
    mine, theirs = first[Attribute.CPUSET_CPUS], second[Attribute.CPUSET_CPUS]
    first[Attribute.CPUSET_CPUS], second[Attribute.CPUSET_CPUS] = theirs, mine
    life.turn(1)
    assert (first[Attribute.CPUSET_CPUS], second[Attribute.CPUSET_CPUS]) == (mine, theirs)
    life.calm_down()


def test_who_comes_later_waits_until_the_one_before_has_ended() -> None:
    """All CPUs are taken by a pod that ignores SIGTERM: its successor gets them after it was killed, not before."""
    life = alive("strict", [("app", "3"), ("app", "1")])
    life.make_stubborn(0, is_unkillable=True)
    life.files = {"a.yaml": made("a", "uid-new", [("app", "3"), ("app", "1")])}
    life.publish()
    life.turn(3)
    life.pass_time(40, turns=3)
    assert [e.pod.uid for e in life.agent.state.entries] == ["uid-a"]
    life.calm_down()
    assert life.machine.running_containers() == ("poduid-new/app0", "poduid-new/app1")


def test_sigkill_is_put_off_once_though_sigterm_fails() -> None:
    life = alive("static", [("app", "1")], [("slot", "1")])
    life.enter(1, turns=1, stubborn=True)
    life.lose_signals(is_deaf=True)
    life.files.clear()
    life.publish()
    life.machine.launcher_answers = False
    life.turn(1)
    life.pass_time(40, turns=1)
    life.machine.launcher_answers = True
    for _ in range(3):
        life.turn(1)
        life.machine.now_ms += 1000
    life.turn(2)
    assert life.machine.signals == [("KILL", "poduid-a/app0"), ("KILL", "poduid-b/slot0")]
    assert life.agent.state.entries == ()


def test_a_change_that_cannot_be_followed_survives_deaths_and_problems() -> None:
    life = alive("static", [("app", "3")], [("app", "3")])
    before = life.machine.running()
    life.files["a.yaml"] = made("a", "uid-a", [("app", "3"), ("app", "2")])
    life.publish()
    life.agent.dies_at = life.agent.effects
    with suppress(CrashError):
        life.agent.turn()
    life.restart()
    life.turn(2)
    life.agent.disk_is_full = True
    life.retry()
    life.calm_down()
    assert life.machine.running() == before
    assert [e.change_refusal and e.change_refusal.reason for e in life.agent.state.entries] == ["OutOfcpu", None]


def test_a_unit_is_given_back_before_anybody_has_its_cpus_whatever_fails_and_dies() -> None:
    life = alive("static")
    life.pin("a.yaml", "db.service", "3", 2)
    own = life.machine.units["db.service"].settings.allowed_cpus
    assert len(own) == 3
    life.machine.broken["units/poduid-a-db.service/db.service", GiveUnitBack] = "systemd has not answered for 5 s"
    life.files = {"b.yaml": made("b", "uid-b", [("app", "3"), ("app", "3")])}
    life.publish()
    life.turn(3)
    assert (life.machine.units["db.service"].settings.allowed_cpus, life.machine.starts) == (own, [])
    life.machine.broken.clear()
    life.die_in_a_turn("c.yaml", [("app", "1")], 1)
    life.turn(3)
    life.retry()
    life.calm_down()
    assert life.machine.units["db.service"].settings == UnitSettings()
    assert len(life.machine.running()) == 3


TestTurns = Turns.TestCase
TestTurns.settings = settings(
    max_examples=share_of(60),
    stateful_step_count=40,
    deadline=None,
    phases=[step for step in Generation if step is not Generation.explain],
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
