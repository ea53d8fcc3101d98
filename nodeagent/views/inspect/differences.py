"""Differences between the allocations and the cgroups: those that the agent's next plan would correct, and those that
it can't.

Knows neither pods nor the file system.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from nodeagent.core.cgroups.write_order import (
    EnableControllers,
    GatherThreads,
    GiveUnitBack,
    MakeCgroup,
    Plan,
    RemoveCgroup,
    SetAttribute,
)
from nodeagent.core.model.cgroup import Attribute, DesiredCgroup, ObservedCgroup, ObservedCgroups, Value
from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.cgroup_values import EFFECTIVE_CPUS, EFFECTIVE_MEMS, print_value

CPUS_ALLOWED = "Cpus_allowed_list"
"""Allowed CPUs of threads, in /proc/PID/task/*/status."""


class Difference(Struct, frozen=True):
    path: str
    """Path of the cgroup, relative to the pods' cgroup."""
    file: str | None
    """Name of the file. None for the cgroup itself."""
    promised: str
    found: str | None
    """Value in the file. None if the file doesn't exist."""


def differences(plan: Plan, desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> tuple[Difference, ...]:
    """Compare the cgroups with the desired ones.

    A plan may write a file twice in a detour (freeze, move, thaw), so only the final value counts.

    Args:
        plan: the result of `diff(desired, observed)`.
        desired: the desired values of every cgroup.
        observed: the observed values.
    """
    found = [*_compare_structure(plan), *_compare_settings(plan, observed)]
    settled = {(d.path, d.file) for d in found}
    for want in desired:
        there = observed.get(want.path)
        if there is not None and want.is_leaf and not want.is_starved and want.goes_back_to is None:
            found += [
                d for d in _compare_effects(want, there) if (d.path, d.file and _requested_file(d.file)) not in settled
            ]
    return tuple(found)


def _compare_structure(plan: Plan) -> Iterator[Difference]:
    made = {change.path for change in plan.changes if isinstance(change, MakeCgroup)}
    for change in plan.changes:
        match change:
            case MakeCgroup(path):
                yield Difference(path, None, "a cgroup", "none")
            case RemoveCgroup(path):
                yield Difference(path, None, "no cgroup", "an empty cgroup without a pod")
            case EnableControllers(path, controllers) if path not in made:
                yield Difference(path, "cgroup.subtree_control", " ".join(controllers), "without them")
            case GiveUnitBack(path, before):
                yield Difference(path, "AllowedCPUs", str(before.allowed_cpus), "still the pod's value")
            case EnableControllers() | GatherThreads() | SetAttribute():
                pass


def _compare_settings(plan: Plan, observed: ObservedCgroups) -> Iterator[Difference]:
    final: dict[tuple[str, Attribute], Value] = {}
    for change in plan.changes:
        if isinstance(change, SetAttribute):
            final[change.path, change.attribute] = change.value
    for (path, attribute), value in final.items():
        there = observed.get(path)
        if there is None:
            continue  # the missing cgroup is already reported
        before = there.get(attribute)
        if before != value:
            yield Difference(path, attribute.value, spelled(value), None if before is None else spelled(before))


def _compare_effects(want: DesiredCgroup, there: ObservedCgroup) -> Iterator[Difference]:
    """Yield differences between the files and the kernel's effective values, because of a parent cgroup that grants
    fewer CPUs or nodes.
    """
    mems = want.get(Attribute.CPUSET_MEMS)
    if there.cpus_effective is not None and there.cpus_effective != want.cpus():
        yield Difference(want.path, EFFECTIVE_CPUS, str(want.cpus()), str(there.cpus_effective))
    if there.elsewhere:
        found = (
            f"{there.elsewhere}, too: the kernel moved its processes there because one of their CPUs was going offline"
        )
        yield Difference(want.path, CPUS_ALLOWED, str(there.cpus_effective), found)
    if mems is not None and there.mems_effective is not None and there.mems_effective != mems:
        yield Difference(want.path, EFFECTIVE_MEMS, spelled(mems), str(there.mems_effective))
    if there.is_frozen and there.get(Attribute.FREEZE) is False:
        yield Difference(want.path, "cgroup.events", "frozen 0", "frozen 1: a parent cgroup is frozen")


def _requested_file(effective: str) -> str:
    return effective.removesuffix(".effective")


def spelled(value: Value) -> str:
    """Format a value as the kernel does. An empty set, which is never written but may be observed, is an empty text."""
    return "" if isinstance(value, (CpuSet, NumaSet)) and not value else print_value(value)
