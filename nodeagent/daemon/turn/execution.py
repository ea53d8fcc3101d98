"""Execution of a plan: make each change in order, and report which changes were made, failed, or were held back.

core/cgroups/write_failures.py classifies the failures. From the classes, this module chooses when the agent reads the cgroups again: at
once, soon, or at the next rescan.
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
    concerns_limit,
    concerns_partition,
    lowers_limit,
    parent_of,
)
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup
from nodeagent.core.model.cgroup_layout import is_pinned, is_within, payload_path
from nodeagent.core.model.idset import CpuSet
from nodeagent.daemon.turn.problem import Problem
from nodeagent.edge.cgroups.cgroupfs.files import CgroupError, MemoryInUseError

_RETRY_SECONDS = 1.0


class CgroupWriter(Protocol):
    """Interface that makes the changes of a plan."""

    def apply(self, change: Change) -> None:
        """Make one change.

        Raises:
            CgroupError: the change failed.
        """


class ExecutionResult(Struct, frozen=True):
    written: tuple[Change, ...]
    failed: tuple[tuple[Change, CgroupError], ...]
    held_back: tuple[Change, ...]
    """Changes that were not tried, because they depend on a change that failed.

    For instance, CPUs weren't vacated, a cgroup wasn't created or removed, or a limit wasn't lowered.
    """
    ready: frozenset[str]
    """Paths of container cgroups that have all their allocated values, and whose exclusive CPUs no other process uses."""


class FailureResponse(Struct, frozen=True):
    """Response of the agent to the failed writes of a turn."""

    has_vanished: bool = False
    """Whether a cgroup or file had been removed by another program before the agent wrote to it."""
    problems: tuple[Problem, ...] = ()
    pause_seconds: float | None = None
    """Seconds until the agent reads the cgroups again. None means that it waits for the next rescan."""


def respond(
    outcome: ExecutionResult, before: FailureResponse, owner: Callable[[str], Mapping[str, str]]
) -> FailureResponse:
    """Choose when the agent reads the cgroups again after a turn's failures.

    After a cgroup has vanished, the agent reads at once. If cgroups vanish in two turns in a row, it waits before it reads again, so that
    it doesn't loop without a pause.
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
    """Return the CPUs of the partitions that could not be created."""
    cpus = CpuSet()
    for change in (*(change for change, _ in outcome.failed), *outcome.held_back):
        if isinstance(change, SetAttribute) and change.attribute is Attribute.CPUSET_CPUS_PARTITION:
            cpus |= change.grants
    return cpus


def unvacated_cpus(outcome: ExecutionResult) -> CpuSet:
    """Return the CPUs that should have been vacated, but that some process may still use."""
    cpus = CpuSet()
    for change in (*(change for change, _ in outcome.failed), *outcome.held_back):
        if isinstance(change, SetAttribute | GatherThreads):
            cpus |= change.vacates
    return cpus


class _Progress(Struct):
    occupied: CpuSet
    written: list[Change] = field(default_factory=list)
    failed: list[tuple[Change, CgroupError]] = field(default_factory=list)
    held_back: list[Change] = field(default_factory=list)
    unusable: set[str] = field(default_factory=set)
    uncreated: set[str] = field(default_factory=set)
    """Cgroups that could not be created. Changes in them or their descendants are held back."""
    misplaced: set[str] = field(default_factory=set)
    """Cgroups whose `cpuset.cpus` could not be written. They stay frozen, because their processes might otherwise run on other containers'
    CPUs.
    """
    without_exclusive: set[str] = field(default_factory=set)
    """Cgroups whose `cpuset.cpus.exclusive` could not be written. Without it, no partition can be created in them or their descendants."""
    unremoved: set[str] = field(default_factory=set)
    """Cgroups that could not be removed. Their ancestors can't be removed, either."""
    unlowered: set[tuple[str, Attribute]] = field(default_factory=set)
    """Pod cgroups, each with a limit that can't be lowered now, because the same limit of one of the pod's
    containers could not be lowered.
    """


def execute(
    plan: Plan, desired: Iterable[DesiredCgroup], tree: CgroupWriter, alive: Callable[[], None] = lambda: None
) -> ExecutionResult:
    """Make the changes of a plan in order. A failed change holds back those that depend on it. `alive` is called before each change."""
    progress = _Progress(plan.occupied)
    for change in plan.changes:
        alive()
        if _must_limit_wait(change, progress):
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
                continue  # the cgroup uses more memory than the new limit allows; no other change depends on this change
            _note_undone(change, progress)
            if isinstance(change, SetAttribute | GatherThreads):
                progress.occupied |= change.vacates
        else:
            progress.written.append(change)
    leaves = [want for want in desired if want.is_leaf and not want.is_starved]
    if progress.occupied:
        leaves = [want for want in leaves if not want.exclusive_cpus & progress.occupied]
    ready = frozenset([want.path for want in leaves])
    if progress.unusable:
        ready = frozenset(path for path in ready - progress.unusable if not _is_below_unusable(path, progress))
    return ExecutionResult(tuple(progress.written), tuple(progress.failed), tuple(progress.held_back), ready)


def _note_unlowered(change: Change, progress: _Progress) -> None:
    if concerns_limit(change) and lowers_limit(change):
        progress.unlowered.add((parent_of(change.path), change.attribute))


def _must_limit_wait(change: Change, progress: _Progress) -> bool:
    """Return whether the change would make a pod's limit lower than the same limit of one of its containers."""
    if not concerns_limit(change):
        return False
    if (change.path, change.attribute) in progress.unlowered:
        return True
    return (parent_of(change.path), change.attribute) in progress.unlowered and not lowers_limit(change)


def _note_undone(change: Change, progress: _Progress) -> None:
    if isinstance(change, RemoveCgroup):
        progress.unremoved.add(change.path)
    elif concerns_partition(change):
        if isinstance(change, SetAttribute) and change.attribute is Attribute.CPUSET_CPUS_EXCLUSIVE:
            progress.without_exclusive.add(change.path)
    else:
        progress.unusable.add(change.path)
    if isinstance(change, MakeCgroup):
        progress.uncreated.add(change.path)
    elif isinstance(change, SetAttribute) and change.attribute is Attribute.CPUSET_CPUS:
        progress.misplaced.add(change.path)


def _is_held_back(change: Change, progress: _Progress) -> bool:
    if is_pinned(change.path) and change.path in progress.misplaced:
        return True
    match change:
        case SetAttribute(attribute=Attribute.FREEZE, value=False) if change.path in progress.misplaced:
            return True
        case SetAttribute() if concerns_partition(change):
            return (
                _is_out_of_reach(change.path, progress)
                or bool(change.grants & progress.occupied)
                or any(is_within(change.path, path) for path in progress.without_exclusive)
            )
        case SetAttribute(vacates=vacated) if vacated:
            return change.path in progress.uncreated or bool(change.grants & progress.occupied)
        case SetAttribute(attribute=Attribute.FALLBACK_CPUS):
            return _is_out_of_reach(payload_path(change.path), progress)
        case SetAttribute():
            return _is_out_of_reach(change.path, progress) or bool(change.grants & progress.occupied)
        case MakeCgroup() | EnableControllers() | GatherThreads():
            return _is_out_of_reach(change.path, progress)
        case GiveUnitBack():
            return False
        case RemoveCgroup():
            return any(path.startswith(change.path + "/") for path in progress.unremoved)


def _is_out_of_reach(path: str, progress: _Progress) -> bool:
    return path in progress.uncreated or _is_below_unusable(path, progress)


def _is_below_unusable(path: str, progress: _Progress) -> bool:
    return any(above == "" or path.startswith(above + "/") for above in progress.unusable if above != path)
