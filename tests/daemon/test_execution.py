"""Carrying a plan out: what a change that fails holds back, what goes on all the same, and which cgroups are ready for processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from nodeagent.core.cgroups.write_order import Change, EnableControllers, MakeCgroup, Plan, RemoveCgroup, SetAttribute
from nodeagent.core.model.cgroup import Attribute, ByteLimit, CpuMax, DesiredCgroup
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon.turn.execution import ExecutionResult, execute
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError, MemoryInUseError


@dataclass
class Tree:
    """Refuses some changes."""

    broken: Sequence[Change] = ()
    tried: list[Change] = field(default_factory=list)
    error: type[CgroupError] = CgroupError

    def apply(self, change: Change) -> None:
        self.tried.append(change)
        if change in self.broken:
            raise self.error("Device or resource busy", path=change.path, error=None, hint="wait")


def cpus(path: str, text: str, *, vacates: str = "", grants: str = "") -> SetAttribute:
    freed, given = CpuSet.parse(vacates), CpuSet.parse(grants)
    return SetAttribute(path, Attribute.CPUSET_CPUS, CpuSet.parse(text), None, vacates=freed, grants=given)


def weight(path: str) -> SetAttribute:
    return SetAttribute(path, Attribute.CPU_WEIGHT, 7, 100)


def frozen(path: str, *, value: bool, vacates: str = "", grants: str = "") -> SetAttribute:
    freed, given = CpuSet.parse(vacates), CpuSet.parse(grants)
    return SetAttribute(path, Attribute.FREEZE, value, not value, vacates=freed, grants=given)


def leaf(path: str, text: str, *, alone: bool = False, starved: bool = False) -> DesiredCgroup:
    cpus = CpuSet.parse(text)
    return DesiredCgroup(
        path,
        attributes=((Attribute.CPUSET_CPUS, cpus),),
        exclusive_cpus=cpus if alone else CpuSet(),
        is_starved=starved,
        is_leaf=True,
    )


MAKE_POD, MAKE_APP = MakeCgroup("pod1"), MakeCgroup("pod1/app")
ENABLE = EnableControllers("pod1", ("cpu", "cpuset"))
LEAVE, LEAVE_TOO = cpus("pod2/s", "0-1", vacates="2-3"), cpus("pod3/s", "0-1", vacates="2-3")
GRANT = cpus("pod1/app", "2-3", grants="2-3")
OTHER_GRANT = cpus("pod4/app", "5", grants="5")
DESIRED = (
    DesiredCgroup("pod1"),
    leaf("pod1/app", "2-3", alone=True),
    leaf("pod2/s", "0-1"),
    leaf("pod4/app", "5", alone=True),
)
CHANGES = (MAKE_POD, ENABLE, MAKE_APP, LEAVE, GRANT, OTHER_GRANT)
ALL = {"pod1/app", "pod2/s", "pod4/app"}


def carried(changes: Sequence[Change], *broken: Change, occupied: str = "") -> tuple[ExecutionResult, Tree]:
    tree = Tree(broken)
    return execute(Plan(tuple(changes), CpuSet.parse(occupied)), DESIRED, tree), tree


def test_every_change_is_made_in_the_plans_order() -> None:
    outcome, tree = carried(CHANGES)
    assert (tuple(tree.tried), outcome.written) == (CHANGES, CHANGES)
    assert (outcome.failed, outcome.held_back) == ((), ())
    assert outcome.ready == ALL


def test_without_changes_all_that_is_wished_for_is_ready() -> None:
    outcome, _ = carried(())
    assert outcome == ExecutionResult((), (), (), frozenset(ALL))


@pytest.mark.parametrize(
    ("broken", "held_back", "not_ready"),
    [
        pytest.param([MAKE_POD], [ENABLE, MAKE_APP, GRANT], {"pod1/app"}, id="no cgroup: nothing below it"),
        pytest.param([ENABLE], [MAKE_APP, GRANT], {"pod1/app"}, id="no controllers: nothing below them"),
        pytest.param([MAKE_APP], [GRANT], {"pod1/app"}, id="a container's cgroup: none of its files"),
        pytest.param([LEAVE], [GRANT], {"pod1/app", "pod2/s"}, id="who does not leave keeps the CPUs from the next"),
        pytest.param([GRANT], [], {"pod1/app"}, id="a grant concerns nobody else"),
        pytest.param([OTHER_GRANT], [], {"pod4/app"}, id="the last one"),
    ],
)
def test_a_failure_holds_back_what_relies_on_it_and_nothing_else(
    broken: list[Change], held_back: list[Change], not_ready: set[str]
) -> None:
    outcome, tree = carried(CHANGES, *broken)
    assert [change for change, _ in outcome.failed] == broken
    assert list(outcome.held_back) == held_back
    assert set(outcome.written) == set(CHANGES) - {*broken, *held_back}
    assert set(outcome.ready) == ALL - not_ready
    assert not {*held_back} & {*tree.tried}


@pytest.mark.parametrize(
    ("changes", "broken", "held_back"),
    [
        pytest.param([LEAVE, LEAVE_TOO, GRANT], [LEAVE_TOO], [GRANT], id="one of two who are to leave stays"),
        pytest.param([LEAVE, weight("pod1/app"), GRANT], [LEAVE], [GRANT], id="other files are written all the same"),
        pytest.param(
            [frozen("pod2/s", value=True, vacates="2"), GRANT],
            [frozen("pod2/s", value=True, vacates="2")],
            [GRANT],
            id="who cannot be frozen has not left",
        ),
        pytest.param(
            [cpus("pod2/s", "0-1"), frozen("pod2/s", value=False)],
            [cpus("pod2/s", "0-1")],
            [frozen("pod2/s", value=False)],
            id="nobody is thawed on CPUs that are not his",
        ),
        pytest.param(
            [LEAVE, GRANT, frozen("pod1/app", value=False, grants="2-3")],
            [LEAVE],
            [GRANT, frozen("pod1/app", value=False, grants="2-3")],
            id="nobody is thawed while his grant is held back",
        ),
        pytest.param(
            [weight("pod2/s"), frozen("pod2/s", value=False)],
            [weight("pod2/s")],
            [],
            id="a file that is no cpuset does not keep anybody frozen",
        ),
        pytest.param([RemoveCgroup("pod1"), MAKE_APP], [RemoveCgroup("pod1")], [], id="what cannot be removed stays"),
        pytest.param(
            [RemoveCgroup("pod1/app"), RemoveCgroup("pod1"), RemoveCgroup("pod11")],
            [RemoveCgroup("pod1/app")],
            [RemoveCgroup("pod1")],
            id="and so does what is above it",
        ),
    ],
)
def test_what_a_failure_holds_back(changes: list[Change], broken: list[Change], held_back: list[Change]) -> None:
    outcome, _ = carried(changes, *broken)
    assert [change for change, _ in outcome.failed] == broken
    assert list(outcome.held_back) == held_back
    assert [c for c in changes if c not in broken and c not in held_back] == list(outcome.written)


@pytest.mark.parametrize(
    ("occupied", "held_back", "not_ready"),
    [
        pytest.param("", [], set(), id="nobody"),
        pytest.param("0", [], set(), id="an orphan on shared CPUs"),
        pytest.param("3", [GRANT], {"pod1/app"}, id="an orphan on CPUs to be granted"),
        pytest.param("3,5", [GRANT, OTHER_GRANT], {"pod1/app", "pod4/app"}, id="everywhere"),
    ],
)
def test_cpus_that_a_stranger_is_on_are_not_granted(
    occupied: str, held_back: list[Change], not_ready: set[str]
) -> None:
    outcome, _ = carried((GRANT, OTHER_GRANT), occupied=occupied)
    assert list(outcome.held_back) == held_back
    assert set(outcome.ready) == ALL - not_ready


def test_a_stranger_on_cpus_that_were_granted_before_keeps_processes_from_starting_there() -> None:
    outcome, _ = carried((), occupied="2")
    assert set(outcome.ready) == ALL - {"pod1/app"}


def test_a_starved_cgroup_is_never_ready() -> None:
    outcome = execute(Plan(()), (leaf("pod2/s", "", starved=True),), Tree())
    assert outcome.ready == frozenset()


def test_a_failure_is_reported_with_its_cause() -> None:
    outcome, _ = carried(CHANGES, GRANT)
    ((change, err),) = outcome.failed
    assert change == GRANT
    assert (err.message, err.hint) == ("Device or resource busy", "wait")


def limit(path: str, before: int, after: int) -> SetAttribute:
    return SetAttribute(path, Attribute.MEMORY_MAX, ByteLimit(after), ByteLimit(before))


LOWER, LOWER_TOO, HIGHER = limit("pod1/app", 9, 4), limit("pod1/b", 9, 5), limit("pod1/c", 3, 5)
POD_LOWER, OTHER_POD = limit("pod1", 21, 14), limit("pod4", 9, 5)


@pytest.mark.parametrize("error", [CgroupError, MemoryInUseError])
def test_a_limit_that_a_container_still_has_holds_back_its_pods_lower_one_and_others_higher_ones(
    error: type[CgroupError],
) -> None:
    quota = SetAttribute("pod1", Attribute.CPU_MAX, CpuMax(1000, 10_000), CpuMax(2000, 10_000))
    changes = (LOWER, LOWER_TOO, HIGHER, POD_LOWER, OTHER_POD, quota, frozen("pod1/app", value=False))
    outcome = execute(Plan(changes), DESIRED, Tree([LOWER], error=error))
    assert outcome.held_back == (HIGHER, POD_LOWER)
    assert outcome.written == tuple(change for change in changes if change not in {LOWER, HIGHER, POD_LOWER})
    assert ("pod1/app" in outcome.ready) == (error is MemoryInUseError), "it has more than it was promised"


def test_a_limit_that_is_held_back_holds_back_its_pods_lower_one_too() -> None:
    pod = cpus("pod1", "2-3", vacates="4")
    outcome, _ = carried([pod, LOWER, POD_LOWER], pod)
    assert outcome.held_back == (LOWER, POD_LOWER)
