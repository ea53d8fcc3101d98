"""The order of cgroup writes. The input is the desired and the observed cgroups, and the output is an ordered list of changes.

The order guarantees that no exclusive CPU has two users at any moment:

1. Remove empty cgroups that are not desired. Create new cgroups and enable controllers, from the top down. End partitions. Restore the
   settings of systemd units that no pod pins any more.
2. Vacate CPUs. First freeze cgroups that have no CPU left. Then shrink exclusive cgroups, then pods' cgroups (which limit the CPUs of
   their containers), then all shared cgroups. A systemd unit vacates in this step only the CPUs that are granted to other cgroups.
   systemd may start the unit at any time, so it gets its exclusive CPUs and loses all others in a single write (step 3).
3. Grant exclusive CPUs and write all other differences. Then write fallback CPUs, because all other cgroups have left them by then. Then
   write limits, in an order in which a pod's limit is never below those of its containers. Start partitions (partitions.py).
4. Thaw frozen cgroups.

If a change that `vacates` CPUs fails, no later change that `grants` one of these CPUs may be carried out. If a container's lower limit
can't be written, the pod's limit must not be lowered, and no other container's limit in the pod may be raised. Only differences are
written, so an idle machine sees no writes. This matters because kernel 6.1 resets a thread's own CPU affinity at every cpuset write.

This module knows cgroups but no pods, and doesn't access files.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeGuard

from msgspec import Struct

from nodeagent.core.cgroups.partitions import PARTITION_ATTRIBUTES, Step, end_partitions, start_partitions
from nodeagent.core.model.cgroup import (
    Attribute,
    ByteLimit,
    CpuMax,
    DesiredCgroup,
    ObservedCgroup,
    ObservedCgroups,
    UnitSettings,
    Value,
    unclear_units,
)
from nodeagent.core.model.cgroup_layout import is_ours, is_pinned
from nodeagent.core.model.idset import CpuSet

_LIMITS = frozenset({Attribute.MEMORY_MAX, Attribute.CPU_MAX})


class MakeCgroup(Struct, frozen=True):
    path: str
    has_payload: bool = False
    """Whether the cgroup belongs to a container. The processes of a container are in a child cgroup named `payload`."""


class EnableControllers(Struct, frozen=True):
    path: str
    controllers: tuple[str, ...]


class GatherThreads(Struct, frozen=True):
    """Change that moves threads back to the CPUs of their cgroup. The kernel has put these threads on other CPUs, because their own CPUs
    were offline.
    """

    path: str
    vacates: CpuSet
    """CPUs that are vacated once these threads have moved."""


class SetAttribute(Struct, frozen=True):
    path: str
    attribute: Attribute
    value: Value
    before: Value | None
    """Observed value. None means that the cgroup is new, or that it doesn't have this file."""
    vacates: CpuSet = CpuSet()
    """CPUs on which no process of this cgroup runs once the change is in effect."""
    grants: CpuSet = CpuSet()
    """CPUs that belong exclusively to this cgroup once the change is in effect."""


class RemoveCgroup(Struct, frozen=True):
    path: str


class GiveUnitBack(Struct, frozen=True):
    """Change that restores the CPUs and memory nodes that a systemd unit had before a pod pinned it."""

    path: str
    before: UnitSettings


InPlace = Mapping[str, tuple[DesiredCgroup, ObservedCgroup]]
"""Desired and observed values of the cgroups that need no change, by path."""
Change = MakeCgroup | EnableControllers | GatherThreads | SetAttribute | RemoveCgroup | GiveUnitBack


def parent_of(path: str) -> str:
    return path.rpartition("/")[0]


def concerns_limit(change: Change) -> TypeGuard[SetAttribute]:
    return isinstance(change, SetAttribute) and change.attribute in _LIMITS


def lowers_limit(change: SetAttribute) -> bool:
    """Return whether the change lowers a limit below its observed value."""
    return change.before is not None and _measure_limit(change.value) < _measure_limit(change.before)


def _measure_limit(limit: Value) -> float:
    match limit:
        case ByteLimit(limit_bytes):
            return math.inf if limit_bytes is None else limit_bytes
        case CpuMax(quota_us, period_us):
            return math.inf if quota_us is None else quota_us / period_us
        case _:
            raise AssertionError(f"{limit} is not one of the limits of a cgroup")


def concerns_partition(change: Change) -> bool:
    """Return whether the change concerns a partition. If such a change fails, containers run as usual, and are only less isolated from the
    host.
    """
    return isinstance(change, SetAttribute) and change.attribute in PARTITION_ATTRIBUTES


class Plan(Struct, frozen=True):
    changes: tuple[Change, ...]
    occupied: CpuSet = CpuSet()
    """CPUs that must not be granted now, because processes outside of the desired cgroups may run on them and no change can move these
    processes.
    """
    orphans: tuple[str, ...] = ()
    """Paths of cgroups with processes below the pods' cgroup that belong to no pod."""
    in_place: InPlace = MappingProxyType({})
    """Desired and observed values of the cgroups that need no change, by path."""


def diff(desired: Iterable[DesiredCgroup], observed: ObservedCgroups, in_place: InPlace = MappingProxyType({})) -> Plan:
    """Return the changes that turn the observed cgroups into the desired ones, in a safe order.

    Args:
        desired: all cgroups that should exist, parents before children.
        observed: the pods' cgroup itself (path ""), every cgroup below it, the cgroups above it, and the units that pods pin.
        in_place: `Plan.in_place` of the previous plan. Cgroups that are unchanged since then aren't compared, which saves time.
    """
    everything = tuple(desired)
    paths = [want.path for want in everything]
    desired_paths = set(paths)
    # zip and map make this comparison fast, because each turn compares thousands of cgroups
    changed = [
        want
        for want, pair, cgroup in zip(everything, map(in_place.get, paths), map(observed.get, paths), strict=True)
        if pair is None or pair[0] is not want or pair[1] is not cgroup
    ]
    known, others = dict(in_place), list[DesiredCgroup]()
    for path in in_place.keys() - desired_paths:
        del known[path]
    for want in changed:
        cgroup = observed.get(want.path)
        if cgroup is not None and _is_in_place(want, cgroup):
            known[want.path] = (want, cgroup)
        else:
            known.pop(want.path, None)
            others.append(want)
    # Only systemd can create a unit's cgroup.
    wants = tuple(
        want for want in others if want.goes_back_to is None and (want.path in observed or not is_pinned(want.path))
    )
    has_units = any(is_pinned(want.path) for want in wants)
    exclusive = {want.path: want.exclusive_cpus for want in everything if want.exclusive_cpus} if has_units else {}
    undesired = observed.keys() - desired_paths
    leftovers = sorted((path for path in undesired if path and is_ours(path)), reverse=True)
    parents = {parent_of(path) for path in observed if path} if leftovers else set[str]()
    orphans = tuple(path for path in leftovers if observed[path].is_populated and path not in parents)
    occupied = CpuSet()
    for path in orphans:
        occupied |= observed[path].cpus_effective or CpuSet()
    for cpus in unclear_units({path: observed[path] for path in undesired}).values():
        occupied |= cpus
    for want in wants:
        occupied |= _find_stuck_cpus(want, observed)
    changes = (
        *(RemoveCgroup(path) for path in leftovers if not observed[path].is_populated),
        *_create_cgroups(wants, observed),
        *_write_steps(end_partitions(wants, observed)),
        *_restore_units(others, observed),
        *_vacate_all(wants, observed, exclusive),
        *_write_differences(wants, observed, exclusive),
        *_extend_fallbacks(wants, observed),
        *_write_limits(wants, observed),
        *_write_steps(start_partitions(wants, observed)),
        *_thaw(wants, observed),
    )
    return Plan(changes, occupied, orphans, known)


def _is_in_place(want: DesiredCgroup, cgroup: ObservedCgroup) -> bool:
    """Return whether a cgroup needs no change and its processes use only the desired CPUs, no matter what the other cgroups are."""
    usable = _find_usable_cpus(cgroup)
    return (
        not is_pinned(want.path)
        and not want.is_starved
        and want.controllers <= cgroup.subtree_control
        and cgroup.get(Attribute.FREEZE) is not True
        and not cgroup.elsewhere
        and all(map(cgroup.attributes.__contains__, want.attributes))
        and (not want.is_leaf or usable <= want.cpus())
        and (not want.is_exclusive or want.cpus() <= usable | want.offline_cpus)
    )


def _restore_units(desired: Iterable[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Change]:
    for want in desired:
        cgroup = observed.get(want.path)
        if want.goes_back_to is not None and cgroup is not None and cgroup.unit != want.goes_back_to:
            yield GiveUnitBack(want.path, want.goes_back_to)


def _write_steps(steps: Iterable[Step]) -> Iterator[Change]:
    for step in steps:
        yield SetAttribute(step.path, step.attribute, step.value, step.before, grants=step.grants)


def _find_stuck_cpus(want: DesiredCgroup, observed: ObservedCgroups) -> CpuSet:
    """Return the CPUs outside of a cgroup's desired cpuset that its processes may use even after all changes.

    If no CPU in a cpuset is available, the kernel uses the parent's CPUs instead. A unit without an available CPU stays on its present
    CPUs.
    """
    cgroup = observed.get(want.path)
    if cgroup is None or not want.is_leaf or want.is_starved:
        return CpuSet()
    is_in_place = not want.cpus() or cgroup.get(Attribute.CPUSET_CPUS) == want.cpus()
    return _find_usable_cpus(cgroup) - want.cpus() if is_in_place else CpuSet()


def _create_cgroups(desired: Iterable[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Change]:
    for want in desired:
        if is_pinned(want.path):
            continue
        cgroup = observed.get(want.path)
        has_payload = want.get(Attribute.FALLBACK_CPUS) is not None
        if cgroup is None or (has_payload and cgroup.get(Attribute.FALLBACK_CPUS) is None):
            yield MakeCgroup(want.path, has_payload=has_payload)
        missing = want.controllers - (cgroup.subtree_control if cgroup else frozenset())
        if missing:
            yield EnableControllers(want.path, tuple(sorted(missing)))


def _vacate_all(
    desired: Iterable[DesiredCgroup], observed: ObservedCgroups, exclusive: Mapping[str, CpuSet]
) -> Iterator[Change]:
    """Make every cgroup leave the CPUs that it shouldn't have, in the following order.

    Cgroups that have no CPU to move to are frozen. Then exclusive cgroups stop listing CPUs that they don't own. If such a CPU stayed
    listed, processes in the cgroup would use the CPU as soon as the pod's cgroup gets it, which is before the grant. Then the pods' cgroups
    change. They limit their shared containers, which may have to move to CPUs that the pod's cgroup lacks so far. Fallback CPUs are reduced
    here, and extended only after all cgroups have vacated.
    """
    desired = tuple(desired)
    leaves = sorted((w for w in desired if w.is_leaf), key=lambda w: not w.is_exclusive)
    for want in leaves:
        cgroup = observed.get(want.path)
        if (want.is_starved or _is_displaced(want, cgroup)) and (
            cgroup is None or cgroup.get(Attribute.FREEZE) is not True
        ):
            yield SetAttribute(
                want.path, Attribute.FREEZE, value=True, before=False, vacates=_find_usable_cpus(cgroup) - want.cpus()
            )
    for want in leaves:
        kept = _find_kept_cpus(want, observed)
        if kept:
            yield from _vacate(want, observed.get(want.path), kept, want.cpus() | want.offline_cpus)
    for want in desired:
        if not want.is_leaf and want.cpus():
            cgroup = observed.get(want.path)
            before = cgroup.get(Attribute.CPUSET_CPUS) if cgroup else None
            if before != want.cpus():
                vacates = _find_listed_cpus(cgroup) - want.cpus()
                yield SetAttribute(want.path, Attribute.CPUSET_CPUS, want.cpus(), before, vacates=vacates)
    for want in leaves:
        fallback = _find_fallback(observed.get(want.path))
        gone = fallback - want.fallback_cpus()
        if gone and want.fallback_cpus():
            yield SetAttribute(
                want.path, Attribute.FALLBACK_CPUS, _narrow_fallback(want, fallback), fallback, vacates=gone
            )
    for want in leaves:
        cgroup = observed.get(want.path)
        if want.cpus() and not want.is_exclusive:
            yield from _vacate(want, cgroup, want.cpus(), want.cpus())
    for want in leaves:
        cgroup = observed.get(want.path)
        left = _find_interim_cpus(want, cgroup, exclusive)
        if left:
            yield from _vacate(want, cgroup, left, left)
    for want in leaves:
        cgroup = observed.get(want.path)
        if cgroup is not None and cgroup.elsewhere:
            yield GatherThreads(want.path, vacates=cgroup.elsewhere)


def _find_fallback(cgroup: ObservedCgroup | None) -> CpuSet:
    fallback = cgroup.get(Attribute.FALLBACK_CPUS) if cgroup else None
    return fallback if isinstance(fallback, CpuSet) else CpuSet()


def _narrow_fallback(want: DesiredCgroup, fallback: CpuSet) -> CpuSet:
    """Return the fallback CPUs for the time until other cgroups have vacated theirs. These are the desired fallback CPUs that the cgroup
    already has. If it has none of them, these are all desired ones, because an empty cpuset would have another meaning.
    """
    return fallback & want.fallback_cpus() or want.fallback_cpus()


def _find_kept_cpus(want: DesiredCgroup, observed: ObservedCgroups) -> CpuSet | None:
    """Return the cpuset that an exclusive cgroup gets until its CPUs are granted: the desired CPUs that it already uses. Return None
    if the cgroup lists no other CPUs, so nothing must be taken away, or if no CPU would be left.

    The cgroup's own offline CPUs may stay listed. Any other listed CPU would become usable as soon as the CPU comes online or the pod's
    cgroup gets it, although other cgroups may not have vacated it yet.
    """
    cgroup = observed.get(want.path)
    if cgroup is None or not want.is_exclusive or is_pinned(want.path) or _is_displaced(want, cgroup):
        return None
    above = observed.get(parent_of(want.path))
    bound = above.get(Attribute.CPUSET_CPUS) if above else None
    allowed = want.cpus() & bound if isinstance(bound, CpuSet) and bound else want.cpus()
    is_beyond = (
        _find_usable_cpus(cgroup) - want.cpus()
        or _find_listed_cpus(cgroup) - _find_usable_cpus(cgroup) - allowed - want.offline_cpus
    )
    return (_find_usable_cpus(cgroup) & want.cpus() or None) if is_beyond else None


def _find_listed_cpus(cgroup: ObservedCgroup | None) -> CpuSet:
    """Return the CPUs on which a cgroup's processes run now, or will run once a parent cgroup has these CPUs.

    The CPUs in `cpuset.cpus` are included, because in a partition only the partition's own CPUs are effective.
    """
    named = cgroup.get(Attribute.CPUSET_CPUS) if cgroup else None
    return _find_usable_cpus(cgroup) | named if isinstance(named, CpuSet) else _find_usable_cpus(cgroup)


def _find_interim_cpus(
    want: DesiredCgroup, cgroup: ObservedCgroup | None, exclusive: Mapping[str, CpuSet]
) -> CpuSet | None:
    """Return the CPUs that a unit with exclusive CPUs may use until its own CPUs are granted.

    None means that the unit uses no other cgroup's exclusive CPUs, or that the cgroup is not such a unit.
    """
    if not want.is_exclusive or not is_pinned(want.path):
        return None
    others = CpuSet()
    for path, cpus in exclusive.items():
        if path != want.path:
            others |= cpus
    held = _find_listed_cpus(cgroup) if want.is_mixed else _find_usable_cpus(cgroup)
    return (held - others or want.meanwhile) if held & others else None


def _vacate(want: DesiredCgroup, cgroup: ObservedCgroup | None, cpus: CpuSet, kept: CpuSet) -> Iterator[Change]:
    before = cgroup.get(Attribute.CPUSET_CPUS) if cgroup else None
    if before != cpus:
        vacates = _find_listed_cpus(cgroup) - kept if _find_usable_cpus(cgroup) else CpuSet()
        yield SetAttribute(want.path, Attribute.CPUSET_CPUS, cpus, before, vacates=vacates)


def _is_displaced(want: DesiredCgroup, cgroup: ObservedCgroup | None) -> bool:
    """Return whether another program has moved an exclusive cgroup off all its CPUs. Such a cgroup is frozen while it moves back.

    A pinned unit isn't frozen, because programs that watch systemd would see this.
    """
    if is_pinned(want.path):
        return False
    usable = _find_usable_cpus(cgroup)
    return (
        want.is_exclusive and bool(usable) and cgroup is not None and cgroup.is_populated and not usable & want.cpus()
    )


def _write_differences(
    desired: Iterable[DesiredCgroup], observed: ObservedCgroups, exclusive: Mapping[str, CpuSet]
) -> Iterator[Change]:
    """Grant exclusive CPUs, and write all other differing values except limits, fallback CPUs and partitions."""
    for want in desired:
        cgroup = observed.get(want.path)
        for attribute, value in want.attributes:
            before = cgroup.get(attribute) if cgroup else None
            if attribute in PARTITION_ATTRIBUTES or attribute in _LIMITS or attribute is Attribute.FALLBACK_CPUS:
                continue
            if attribute is not Attribute.CPUSET_CPUS:
                if before != value:
                    yield SetAttribute(want.path, attribute, value, before)
            elif not want.is_exclusive:
                continue
            elif is_pinned(want.path):
                left = _find_interim_cpus(want, cgroup, exclusive)
                is_alone = (
                    _grants_explicitly(cgroup, before, want.cpus()) and not _find_usable_cpus(cgroup) - want.cpus()
                )
                if left != want.cpus() and not is_alone:
                    vacates = (left or _find_usable_cpus(cgroup)) - want.cpus()
                    yield SetAttribute(want.path, attribute, value, before, vacates, want.exclusive_cpus)
            else:
                before = _find_kept_cpus(want, observed) or before
                if not _grants_explicitly(cgroup, before, want.cpus()):
                    yield SetAttribute(want.path, attribute, value, before, grants=want.exclusive_cpus)


def _extend_fallbacks(desired: Iterable[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Change]:
    """Write the full fallback CPUs, after all other cgroups have left these CPUs."""
    for want in desired:
        cgroup, value = observed.get(want.path), want.fallback_cpus()
        before = cgroup.get(Attribute.FALLBACK_CPUS) if cgroup else None
        if _find_fallback(cgroup) - value:
            before = _narrow_fallback(want, _find_fallback(cgroup))
        if value and before != value:
            yield SetAttribute(want.path, Attribute.FALLBACK_CPUS, value, before)


def _write_limits(desired: Iterable[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Change]:
    """Write limits in an order in which a pod's limit is never below its containers' limits, because processes might otherwise be killed.

    A pod's limit is raised before its containers' limits, and lowered after them. Among the containers' limits, lower limits are written
    first.
    """
    limits: list[tuple[int, SetAttribute]] = []
    for want in desired:
        cgroup = observed.get(want.path)
        for attribute, value in want.attributes:
            before = cgroup.get(attribute) if cgroup else None
            if attribute in _LIMITS and before != value:
                change = SetAttribute(want.path, attribute, value, before)
                limits.append(
                    ((1 if lowers_limit(change) else 2) if want.is_leaf else (3 if lowers_limit(change) else 0), change)
                )
    yield from (change for _, change in sorted(limits, key=lambda each: each[0]))


def _grants_explicitly(cgroup: ObservedCgroup | None, named: Value | None, cpus: CpuSet) -> bool:
    """Return whether a cgroup has these CPUs because its cpuset lists them. Otherwise the kernel may have given it the parent's CPUs,
    because no listed CPU is online.
    """
    return named == cpus or (isinstance(named, CpuSet) and named >= cpus and _find_usable_cpus(cgroup) >= cpus)


def _thaw(desired: Iterable[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Change]:
    for want in desired:
        cgroup = observed.get(want.path)
        if cgroup is None or not want.is_leaf or want.is_starved:
            continue
        if cgroup.get(Attribute.FREEZE) is True or _is_displaced(want, cgroup):
            yield SetAttribute(want.path, Attribute.FREEZE, value=False, before=True, grants=want.exclusive_cpus)


def _find_usable_cpus(cgroup: ObservedCgroup | None) -> CpuSet:
    """Return the CPUs on which a cgroup's processes, or a process that is entering the cgroup, may run now.

    Processes in a frozen cgroup don't run. A systemd unit always counts as running, because other programs can thaw it at any moment.
    """
    if cgroup is None or (cgroup.is_frozen and not is_pinned(cgroup.path)):
        return CpuSet()
    return (cgroup.cpus_effective or CpuSet()) | cgroup.elsewhere
