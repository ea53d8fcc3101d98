"""Every difference between what was promised and what the cgroups hold: what the agent's next plan would change, and what it cannot.

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
"""Of threads, in /proc/PID/task/*/status."""


class Difference(Struct, frozen=True):
    path: str
    """Of the cgroup, relative to the pods' cgroup."""
    file: str | None
    """None: the cgroup itself exists, or doesn't."""
    promised: str
    found: str | None
    """None: the file doesn't exist."""


def differences(plan: Plan, desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> tuple[Difference, ...]:
    """Compare.

    A plan may take a detour (freeze, move, thaw) and so write one file twice: only the final value counts.

    Args:
        plan: `diff(desired, observed)`.
        desired: what every cgroup should hold.
        observed: what they hold.
    """
    found = [*_of_structure(plan), *_of_settings(plan, observed)]
    settled = {(d.path, d.file) for d in found}
    for want in desired:
        there = observed.get(want.path)
        if there is not None and want.is_leaf and not want.is_starved and want.goes_back_to is None:
            found += [d for d in _of_effects(want, there) if (d.path, d.file and _asked(d.file)) not in settled]
    return tuple(found)


def _of_structure(plan: Plan) -> Iterator[Difference]:
    made = {change.path for change in plan.changes if isinstance(change, MakeCgroup)}
    for change in plan.changes:
        match change:
            case MakeCgroup(path):
                yield Difference(path, None, "a cgroup", "none")
            case RemoveCgroup(path):
                yield Difference(path, None, "no cgroup", "an empty one that no pod owns")
            case EnableControllers(path, controllers) if path not in made:
                yield Difference(path, "cgroup.subtree_control", " ".join(controllers), "without them")
            case GiveUnitBack(path, before):
                yield Difference(path, "AllowedCPUs", str(before.allowed_cpus), "still as the pod had it")
            case EnableControllers() | GatherThreads() | SetAttribute():
                pass


def _of_settings(plan: Plan, observed: ObservedCgroups) -> Iterator[Difference]:
    final: dict[tuple[str, Attribute], Value] = {}
    for change in plan.changes:
        if isinstance(change, SetAttribute):
            final[change.path, change.attribute] = change.value
    for (path, attribute), value in final.items():
        there = observed.get(path)
        if there is None:
            continue  # the cgroup doesn't exist: that is enough
        before = there.get(attribute)
        if before != value:
            yield Difference(path, attribute.value, spelled(value), None if before is None else spelled(before))


def _of_effects(want: DesiredCgroup, there: ObservedCgroup) -> Iterator[Difference]:
    """The files are right, but what the kernel grants is not: a cgroup above grants less, or it could grant none of it."""
    mems = want.get(Attribute.CPUSET_MEMS)
    if there.cpus_effective is not None and there.cpus_effective != want.cpus():
        yield Difference(want.path, EFFECTIVE_CPUS, str(want.cpus()), str(there.cpus_effective))
    if there.elsewhere:
        found = f"{there.elsewhere} too: the kernel drove its processes there, as a CPU of theirs was to go offline"
        yield Difference(want.path, CPUS_ALLOWED, str(there.cpus_effective), found)
    if mems is not None and there.mems_effective is not None and there.mems_effective != mems:
        yield Difference(want.path, EFFECTIVE_MEMS, spelled(mems), str(there.mems_effective))
    if there.is_frozen and there.get(Attribute.FREEZE) is False:
        yield Difference(want.path, "cgroup.events", "frozen 0", "frozen 1: a cgroup above is frozen")


def _asked(effective: str) -> str:
    return effective.removesuffix(".effective")


def spelled(value: Value) -> str:
    """Return the kernel's text; an empty set, which is never written but may be found, is the empty text."""
    return "" if isinstance(value, (CpuSet, NumaSet)) and not value else print_value(value)
