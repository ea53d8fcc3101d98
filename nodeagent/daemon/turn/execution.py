"""Carries out a plan, change by change, and reports the outcome: written, failed, held back. The order is the plan's.

core/cgroups/write_failures.py decides what a failure means; the response is here: look again at once, soon, or at the next reconcile.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct, field

from nodeagent.core.cgroups.write_failures import WriteFailure
from nodeagent.core.cgroups.write_order import (
    Change,
    EnableControllers,
    GatherThreads,
    GiveUnitBack,
    MakeCgroup,
    Plan,
    RemoveCgroup,
    SetAttribute,
    is_of_limits,
    is_of_partitions,
    lowers,
    parent_of,
)
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup
from nodeagent.core.model.cgroup_layout import is_pinned, is_within, payload_path
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.cgroups.cgroupfs import CgroupError, MemoryInUseError

_RETRY_SECONDS = 1.0


class CgroupWriter(Protocol):
    """Carries out the changes of a plan."""

    def apply(self, change: Change) -> None:
        """Carry out one change; raises CgroupError."""


class ExecutionResult(Struct, frozen=True):
    written: tuple[Change, ...]
    failed: tuple[tuple[Change, CgroupError], ...]
    held_back: tuple[Change, ...]
    """Not tried: a cgroup above is missing, CPUs are not vacated or not available for thawing, a cgroup below is left, or has a limit that
    should be lower.
    """
    ready: frozenset[str]
    """Cgroups for processes that hold what is promised, with nobody else on their exclusive CPUs."""


class FailureResponse(Struct, frozen=True):
    """The response to the failed writes of one turn."""

    has_vanished: bool = False
    """A cgroup or file had disappeared before it was written."""
    problems: tuple[Problem, ...] = ()
    pause_seconds: float | None = None
    """Time after which to look again. None: the next reconcile is soon enough."""


def respond(
    outcome: ExecutionResult, before: FailureResponse, owner: Callable[[str], Mapping[str, str]]
) -> FailureResponse:
    """Respond to each failure by its class.

    Args:
        outcome: of this turn.
        before: the response of the previous turn: if things were gone then too, looking again at once has not helped.
        owner: returns the log fields of the pod that owns a cgroup path.
    """
    has_vanished = any(err.failure is WriteFailure.GONE for _, err in outcome.failed)
    looks_at_once = has_vanished and not before.has_vanished
    problems = tuple(
        Problem.from_error(err, owner(change.path))
        for change, err in outcome.failed
        if not (looks_at_once and err.failure is WriteFailure.GONE)
    )
    if looks_at_once:
        return FailureResponse(has_vanished, problems, pause_seconds=0.0)
    only_refused = all(err.failure is WriteFailure.REFUSED for _, err in outcome.failed)
    return FailureResponse(has_vanished, problems, None if only_refused else _RETRY_SECONDS)


def uncreated_partitions(outcome: ExecutionResult) -> CpuSet:
    """Return the CPUs of the partitions that should have been created and could not."""
    cpus = CpuSet()
    for change in (*(change for change, _ in outcome.failed), *outcome.held_back):
        if isinstance(change, SetAttribute) and change.attribute is Attribute.CPUSET_CPUS_PARTITION:
            cpus |= change.grants
    return cpus


def unvacated_cpus(outcome: ExecutionResult) -> CpuSet:
    """Return the CPUs on which processes may still run that could not be made to leave them."""
    cpus = CpuSet()
    for change in (*(change for change, _ in outcome.failed), *outcome.held_back):
        if isinstance(change, SetAttribute | GatherThreads):
            cpus |= change.vacates
    return cpus


class _Execution(Struct):
    occupied: CpuSet
    written: list[Change] = field(default_factory=list)
    failed: list[tuple[Change, CgroupError]] = field(default_factory=list)
    held_back: list[Change] = field(default_factory=list)
    unusable: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    """They could not be created: none of their files exists."""
    misplaced: set[str] = field(default_factory=set)
    """Their `cpuset.cpus` could not be written: processes thawed there may run on others' CPUs."""
    not_handed_down: set[str] = field(default_factory=set)
    """Cgroups whose `cpuset.cpus.exclusive` could not be written: no partition can begin there or below. Nothing else depends on them."""
    left: set[str] = field(default_factory=set)
    """They could not be removed, so those above them can't be either."""
    unlowered: set[tuple[str, Attribute]] = field(default_factory=set)
    """Pods' cgroups, and the limits that containers of theirs still have and should not."""


def execute(
    plan: Plan, desired: Iterable[DesiredCgroup], tree: CgroupWriter, alive: Callable[[], None] = lambda: None
) -> ExecutionResult:
    """Apply a plan. A change that fails holds back those that depend on it; all others are still tried. `alive` is called before each."""
    progress = _Execution(plan.occupied)
    for change in plan.changes:
        alive()
        if _is_limit_to_wait(change, progress):
            progress.held_back.append(change)
            continue
        if _is_held_back(change, progress):
            progress.held_back.append(change)
            _note_undone(change, progress)
            _note_unlowered(change, progress)
            if isinstance(change, SetAttribute | GatherThreads):
                progress.occupied |= change.vacates
            continue
        try:
            tree.apply(change)
        except CgroupError as err:
            progress.failed.append((change, err))
            _note_unlowered(change, progress)
            if isinstance(err, MemoryInUseError):
                continue  # it has more than it was promised, and nothing else depends on that
            _note_undone(change, progress)
            if isinstance(change, SetAttribute | GatherThreads):
                progress.occupied |= change.vacates
        else:
            progress.written.append(change)
    ready = frozenset(w.path for w in desired if w.is_leaf and not w.is_starved and _is_ready(w, progress))
    return ExecutionResult(tuple(progress.written), tuple(progress.failed), tuple(progress.held_back), ready)


def _note_unlowered(change: Change, progress: _Execution) -> None:
    if is_of_limits(change) and lowers(change):
        progress.unlowered.add((parent_of(change.path), change.attribute))


def _is_limit_to_wait(change: Change, progress: _Execution) -> bool:
    """Whether the limits of a pod's containers would exceed its own then: nothing but the limits depends on it."""
    if not is_of_limits(change):
        return False
    if (change.path, change.attribute) in progress.unlowered:
        return True
    return (parent_of(change.path), change.attribute) in progress.unlowered and not lowers(change)


def _note_undone(change: Change, progress: _Execution) -> None:
    if isinstance(change, RemoveCgroup):
        progress.left.add(change.path)
    elif is_of_partitions(change):
        if isinstance(change, SetAttribute) and change.attribute is Attribute.CPUSET_CPUS_EXCLUSIVE:
            progress.not_handed_down.add(change.path)
    else:
        progress.unusable.add(change.path)
    if isinstance(change, MakeCgroup):
        progress.missing.add(change.path)
    elif isinstance(change, SetAttribute) and change.attribute is Attribute.CPUSET_CPUS:
        progress.misplaced.add(change.path)


def _is_held_back(change: Change, progress: _Execution) -> bool:
    if is_pinned(change.path) and change.path in progress.misplaced:
        return True
    match change:
        case SetAttribute(attribute=Attribute.FREEZE, value=False) if change.path in progress.misplaced:
            return True
        case SetAttribute() if is_of_partitions(change):
            return (
                _is_out_of_reach(change.path, progress)
                or bool(change.grants & progress.occupied)
                or any(is_within(change.path, path) for path in progress.not_handed_down)
            )
        case SetAttribute(vacates=vacated) if vacated:
            return change.path in progress.missing or bool(change.grants & progress.occupied)
        case SetAttribute(attribute=Attribute.FALLBACK_CPUS):
            return _is_out_of_reach(payload_path(change.path), progress)
        case SetAttribute():
            return _is_out_of_reach(change.path, progress) or bool(change.grants & progress.occupied)
        case MakeCgroup() | EnableControllers() | GatherThreads():
            return _is_out_of_reach(change.path, progress)
        case GiveUnitBack():
            return False
        case RemoveCgroup():
            return any(path.startswith(change.path + "/") for path in progress.left)


def _is_out_of_reach(path: str, progress: _Execution) -> bool:
    return path in progress.missing or _is_below_unusable(path, progress)


def _is_below_unusable(path: str, progress: _Execution) -> bool:
    return any(above == "" or path.startswith(above + "/") for above in progress.unusable if above != path)


def _is_ready(want: DesiredCgroup, progress: _Execution) -> bool:
    if want.path in progress.unusable or _is_below_unusable(want.path, progress):
        return False
    return not want.exclusive_cpus & progress.occupied
