"""The order of cgroup writes: wishes and what was seen in, an ordered list of changes out.

The order is the promise that no exclusive CPU has two users at any moment:

1. empty cgroups that are no longer wished for are removed; new ones are made and controllers enabled, from the top down
2. whoever is on CPUs that are not to be its own leaves them: exclusive cgroups that shrink, then all shared ones; those for which
   no CPU is left are frozen
3. exclusive CPUs are granted, and everything else that differs is written
4. thawing

Whoever carries the changes out stops at `vacates` that failed: a later change that `grants` one of these CPUs must not run.
Only differences are written: an idle machine sees no write (kernel 6.1 resets a thread's own affinity on every cpuset write).
Knows neither pods nor the file system.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from nodeagent.core.model.cgroup import Attribute, DesiredCgroup, ObservedCgroup, ObservedCgroups, Value
from nodeagent.core.model.idset import CpuSet


class MakeCgroup(Struct, frozen=True):
    path: str


class EnableControllers(Struct, frozen=True):
    path: str
    controllers: tuple[str, ...]


class SetAttribute(Struct, frozen=True):
    path: str
    attribute: Attribute
    value: Value
    before: Value | None
    """What was seen; None: the cgroup is new or the file was not there."""
    vacates: CpuSet = CpuSet()
    """CPUs on which no process of this cgroup runs any more once the change has taken effect."""
    grants: CpuSet = CpuSet()
    """CPUs that become this cgroup's alone."""


class RemoveCgroup(Struct, frozen=True):
    path: str


Change = MakeCgroup | EnableControllers | SetAttribute | RemoveCgroup


class Plan(Struct, frozen=True):
    changes: tuple[Change, ...]
    occupied: CpuSet = CpuSet()
    """CPUs on which processes run that no wish knows of and no change can move: not to be granted."""
    strangers: tuple[str, ...] = ()
    """Populated cgroups of ours that no pod owns any more."""


def diff(wishes: Iterable[DesiredCgroup], seen: ObservedCgroups) -> Plan:
    """Give the changes that turn what was seen into what is wished for, in the order in which they are safe.

    Args:
        wishes: every cgroup that is to exist, parents before children.
        seen: every cgroup below the pods' cgroup, and that cgroup itself (path "").

    """
    wished = {wish.path: wish for wish in wishes}
    leftovers = sorted((path for path in seen if path and path not in wished), reverse=True)
    strangers = tuple(path for path in leftovers if seen[path].is_populated and not _has_children(path, seen))
    occupied = CpuSet()
    for path in strangers:
        occupied |= seen[path].cpus_effective or CpuSet()
    for wish in wished.values():
        occupied |= _stuck(wish, seen)
    changes = (
        *(RemoveCgroup(path) for path in leftovers if not seen[path].is_populated),
        *_structure(wished.values(), seen),
        *_departures(wished.values(), seen),
        *_settings(wished.values(), seen),
        *_thaws(wished.values(), seen),
    )
    return Plan(changes, occupied, strangers)


def _stuck(wish: DesiredCgroup, seen: ObservedCgroups) -> CpuSet:
    """CPUs it may run on though its cpuset doesn't name them: where the kernel can grant none asked for, it grants the parent's."""
    there = seen.get(wish.path)
    if there is None or not wish.is_leaf or wish.is_starved or there.get(Attribute.CPUSET_CPUS) != wish.cpus():
        return CpuSet()
    return _usable(there) - wish.cpus()


def _has_children(path: str, seen: ObservedCgroups) -> bool:
    return any(other.startswith(path + "/") for other in seen)


def _structure(wishes: Iterable[DesiredCgroup], seen: ObservedCgroups) -> Iterator[Change]:
    for wish in wishes:
        there = seen.get(wish.path)
        if there is None:
            yield MakeCgroup(wish.path)
        missing = wish.controllers - (there.subtree_control if there else frozenset())
        if missing:
            yield EnableControllers(wish.path, tuple(sorted(missing)))


def _departures(wishes: Iterable[DesiredCgroup], seen: ObservedCgroups) -> Iterator[Change]:
    """Everybody leaves the CPUs that are not to be theirs: exclusive cgroups first, then all shared ones."""
    leaves = sorted((w for w in wishes if w.is_leaf), key=lambda w: not w.is_exclusive)
    for wish in leaves:
        there = seen.get(wish.path)
        usable = _usable(there)
        left = usable - wish.cpus()
        before = there.get(Attribute.CPUSET_CPUS) if there else None
        if wish.is_starved or _is_displaced(wish, there):
            if there is None or there.get(Attribute.FREEZE) is not True:
                yield SetAttribute(wish.path, Attribute.FREEZE, value=True, before=False, vacates=left)
        elif wish.is_exclusive:
            kept = usable & wish.cpus()
            if left and kept:
                yield SetAttribute(wish.path, Attribute.CPUSET_CPUS, kept, before, vacates=left)
        elif before != wish.cpus():
            yield SetAttribute(wish.path, Attribute.CPUSET_CPUS, wish.cpus(), before, vacates=left)


def _is_displaced(wish: DesiredCgroup, there: ObservedCgroup | None) -> bool:
    """Somebody moved an exclusive cgroup off its CPUs: it has none of them to fall back on, so it pauses on its way home."""
    usable = _usable(there)
    return wish.is_exclusive and bool(usable) and there is not None and there.is_populated and not usable & wish.cpus()


def _settings(wishes: Iterable[DesiredCgroup], seen: ObservedCgroups) -> Iterator[Change]:
    """Exclusive CPUs are granted, and all else that differs is written."""
    for wish in wishes:
        there = seen.get(wish.path)
        for attribute, value in wish.attributes:
            before = there.get(attribute) if there else None
            if attribute is not Attribute.CPUSET_CPUS:
                if before != value:
                    yield SetAttribute(wish.path, attribute, value, before)
            elif wish.is_exclusive:
                kept = _usable(there) & wish.cpus()
                if before != value and not (kept == value and there is not None):
                    yield SetAttribute(wish.path, attribute, value, before, grants=wish.cpus())


def _thaws(wishes: Iterable[DesiredCgroup], seen: ObservedCgroups) -> Iterator[Change]:
    for wish in wishes:
        there = seen.get(wish.path)
        if there is None or not wish.is_leaf or wish.is_starved:
            continue
        if there.get(Attribute.FREEZE) is True or _is_displaced(wish, there):
            yield SetAttribute(wish.path, Attribute.FREEZE, value=False, before=True, grants=wish.exclusive_cpus())


def _usable(there: ObservedCgroup | None) -> CpuSet:
    """CPUs on which its processes may run now, one that enters it in this moment too; in a frozen cgroup none run."""
    if there is None or there.is_frozen:
        return CpuSet()
    return there.cpus_effective or CpuSet()
