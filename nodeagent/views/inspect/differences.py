"""Differences between desired and observed cgroups, including differences that the agent can't correct."""

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
from nodeagent.formats.kernel.cgroup_values import EFFECTIVE_CPUS, EFFECTIVE_MEMS, format_value

CPUS_ALLOWED = "Cpus_allowed_list"
"""Name in `Difference.file` if threads have the wrong allowed CPUs. It is a field of /proc/PID/task/*/status, not a cgroup file."""


class Difference(Struct, frozen=True):
    path: str
    """Path of the cgroup, relative to the top cgroup of all pods."""
    file: str | None
    """Name of the cgroup file. None means that the cgroup itself is missing or shouldn't exist."""
    promised: str
    found: str | None
    """Observed value. None means that the file doesn't exist."""


def find_differences(plan: Plan, desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> tuple[Difference, ...]:
    """Compare the observed cgroups with the desired ones.

    If the plan writes a file several times (freeze, move, thaw), only the last value counts.

    Args:
        plan: the result of `diff(desired, observed)`.
        desired: the desired values of every cgroup.
        observed: the observed values.
    """
    found: list[Difference] = []
    made = {change.path for change in plan.changes if isinstance(change, MakeCgroup)}
    final: dict[tuple[str, Attribute], Value] = {}
    for change in plan.changes:
        match change:
            case MakeCgroup(path):
                found.append(Difference(path, None, "a cgroup", "none"))
            case RemoveCgroup(path):
                found.append(Difference(path, None, "no cgroup", "an empty cgroup without a pod"))
            case EnableControllers(path, controllers) if path not in made:
                found.append(Difference(path, "cgroup.subtree_control", " ".join(controllers), "without them"))
            case GiveUnitBack(path, before):
                found.append(Difference(path, "AllowedCPUs", str(before.allowed_cpus), "still the pod's value"))
            case SetAttribute(path, attribute, value):
                final[path, attribute] = value
            case EnableControllers() | GatherThreads():
                pass
    for (path, attribute), value in final.items():
        there = observed.get(path)
        before_value = None if there is None else there.get(attribute)
        if there is not None and before_value != value:  # a missing cgroup is reported as a separate difference
            was = None if before_value is None else _format_value(before_value)
            found.append(Difference(path, attribute.value, _format_value(value), was))
    reported = {(d.path, d.file) for d in found}
    for want in desired:
        there = observed.get(want.path)
        if there is not None and want.is_leaf and not want.is_starved and want.goes_back_to is None:
            found += [
                effect
                for effect in _compare_effects(want, there)
                if (effect.path, effect.file and effect.file.removesuffix(".effective")) not in reported
            ]
    return tuple(found)


def _compare_effects(want: DesiredCgroup, there: ObservedCgroup) -> Iterator[Difference]:
    """Yield the differences between effective and desired values. They differ if, for instance, a parent cgroup grants fewer CPUs."""
    mems = want.get(Attribute.CPUSET_MEMS)
    if there.cpus_effective is not None and there.cpus_effective != want.cpus():
        yield Difference(want.path, EFFECTIVE_CPUS, str(want.cpus()), str(there.cpus_effective))
    if there.elsewhere:
        found = (
            f"{there.elsewhere}, too: the kernel moved its processes there because one of their CPUs was going offline"
        )
        yield Difference(want.path, CPUS_ALLOWED, str(there.cpus_effective), found)
    if mems is not None and there.mems_effective is not None and there.mems_effective != mems:
        yield Difference(want.path, EFFECTIVE_MEMS, _format_value(mems), str(there.mems_effective))
    if there.is_frozen and there.get(Attribute.FREEZE) is False:
        yield Difference(want.path, "cgroup.events", "frozen 0", "frozen 1: a parent cgroup is frozen")


def _format_value(value: Value) -> str:
    """Format a value as in the kernel's files. The result is empty for an empty set."""
    return "" if isinstance(value, (CpuSet, NumaSet)) and not value else format_value(value)
