"""Cpuset partitions, which keep host processes off exclusive CPUs (D27). This module decides which cgroups are partitions, and in which
order partitions start and end.

A partition needs its CPUs in `cpuset.cpus.exclusive` of its own cgroup and of each cgroup above it. Siblings must not have the same CPU
in this file, and a sibling's `cpuset.cpus` must not lie within such a set. Old partitions therefore end before new partitions start.
Partitions end from the bottom up, each before its CPUs are withdrawn. Partitions start from the top down. This module doesn't know pods,
and doesn't access files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import MEMBER, Attribute, DesiredCgroup, ObservedCgroups, Partition, PartitionKind
from nodeagent.core.model.idset import CpuSet

PARTITION_ATTRIBUTES = frozenset({Attribute.CPUSET_CPUS_EXCLUSIVE, Attribute.CPUSET_CPUS_PARTITION})
"""Cgroup files of partitions. A container's start doesn't wait for writes to these files."""

NO_PARTITION = ((Attribute.CPUSET_CPUS_EXCLUSIVE, CpuSet()), (Attribute.CPUSET_CPUS_PARTITION, MEMBER))


def without_partition(want: DesiredCgroup) -> DesiredCgroup:
    return replace(want, attributes=tuple(each for each in want.attributes if each[0] not in PARTITION_ATTRIBUTES))


def add_partitions(
    pod: DesiredCgroup,
    containers: Sequence[DesiredCgroup],
    own: Mapping[str, CpuSet],
    *,
    isolated: CpuSet,
    is_unbalanced: bool,
) -> tuple[DesiredCgroup, ...]:
    """Add the partitions to a pod's cgroups.

    The pod's cgroup is the partition in two cases: the pod has one container, or all its containers have exclusive CPUs and some share
    them with an init container. (Two sibling partitions can't share CPUs.) In any other pod, a container has its own partition if it has
    CPUs that no other container of the pod uses. A partition for the whole pod would leave containers of the shared pool without CPUs. A
    container in it that loses its last CPU would also run on the CPUs of the other containers. The kernel accepts no CPUs isolated at
    boot in a balanced partition, so such CPUs are never mixed with others in one partition.

    Args:
        pod: the pod's cgroup.
        containers: the cgroups of its containers.
        own: the exclusive CPUs of containers that have some now, by path.
        isolated: CPUs isolated at boot (isolcpus), over which the kernel doesn't balance load.
        is_unbalanced: whether the pod requests partitions of the kind `isolated`.
    """
    kind_of = partial(_choose_partition, isolated=isolated, is_unbalanced=is_unbalanced)
    whole = _union(own.values())
    are_apart = len(own) > 1 and len(whole) == sum(map(len, own.values()))
    if len(own) == len(containers) and not are_apart and kind_of(whole) != MEMBER:
        apart = {pod.path: whole}
    else:
        apart = {
            path: cpus
            for path, cpus in own.items()
            if kind_of(cpus) != MEMBER and not cpus & _union(c.cpus() for c in containers if c.path != path)
        }
    handed_down = {path: CpuSet() for path in (pod.path, *(c.path for c in containers))}
    handed_down |= {**apart, pod.path: _union(apart.values())}
    return tuple(
        replace(
            want,
            attributes=(
                *want.attributes,
                (Attribute.CPUSET_CPUS_EXCLUSIVE, handed_down[want.path]),
                (Attribute.CPUSET_CPUS_PARTITION, kind_of(apart.get(want.path, CpuSet()))),
            ),
        )
        for want in (pod, *containers)
    )


def _choose_partition(cpus: CpuSet, *, isolated: CpuSet, is_unbalanced: bool) -> Partition:
    """Return the kind of partition that the kernel accepts for these CPUs."""
    if cpus and (is_unbalanced or cpus <= isolated):
        return Partition(PartitionKind.ISOLATED)
    return Partition(PartitionKind.ROOT) if cpus and cpus.isdisjoint(isolated) else MEMBER


def _union(sets: Iterable[CpuSet]) -> CpuSet:
    union = CpuSet()
    for cpus in sets:
        union |= cpus
    return union


class Step(Struct, frozen=True):
    """Write of one value to one cgroup file."""

    path: str
    attribute: Attribute
    value: CpuSet | Partition
    before: CpuSet | Partition | None
    grants: CpuSet = CpuSet()
    """CPUs of a partition that this step starts. The kernel moves other processes off these CPUs, possibly onto exclusive CPUs of other
    cgroups.
    """


def end_partitions(desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Step]:
    """End each partition that differs from the desired one. Then withdraw the CPUs that partitions no longer need."""
    for want in reversed(desired):
        before = _find_partition(want, observed)
        if before is not None and _has_to_end(want, observed):
            yield Step(want.path, Attribute.CPUSET_CPUS_PARTITION, MEMBER, before)
    for want in reversed(desired):
        before_cpus = _find_handed_down_cpus(want, observed)
        if before_cpus - want.partition_cpus() and want.get(Attribute.CPUSET_CPUS_EXCLUSIVE) is not None:
            kept = before_cpus & want.partition_cpus()
            yield Step(want.path, Attribute.CPUSET_CPUS_EXCLUSIVE, kept, before_cpus)


def start_partitions(desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Step]:
    """Add the CPUs of each partition to the cgroups above it. Then start the partitions, including partitions that the kernel has
    invalidated.
    """
    for want in desired:
        before_cpus = _find_handed_down_cpus(want, observed)
        if want.partition_cpus() - before_cpus:
            kept = before_cpus & want.partition_cpus()
            yield Step(want.path, Attribute.CPUSET_CPUS_EXCLUSIVE, want.partition_cpus(), kept)
    for want in desired:
        wanted = want.get(Attribute.CPUSET_CPUS_PARTITION)
        if not isinstance(wanted, Partition) or wanted == MEMBER:
            continue
        before = None if _has_to_end(want, observed) else _find_partition(want, observed)
        if before != wanted:
            yield Step(want.path, Attribute.CPUSET_CPUS_PARTITION, wanted, before, grants=want.partition_cpus())


def find_unpartitioned_cpus(desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> CpuSet:
    """Return the CPUs of populated cgroups that should be partitions but aren't, for instance because the kernel refused the partition."""
    begin = (step for step in start_partitions(desired, observed) if step.path in observed)
    return _union(step.grants for step in begin if observed[step.path].is_populated)


def _has_to_end(want: DesiredCgroup, observed: ObservedCgroups) -> bool:
    before = _find_partition(want, observed)
    if before is None or before == MEMBER:
        return False
    return (
        want.get(Attribute.CPUSET_CPUS_PARTITION) == MEMBER
        or _find_handed_down_cpus(want, observed) != want.partition_cpus()
    )


def _find_partition(want: DesiredCgroup, observed: ObservedCgroups) -> Partition | None:
    there = observed.get(want.path)
    found = there.get(Attribute.CPUSET_CPUS_PARTITION) if there else None
    return found if isinstance(found, Partition) else None


def _find_handed_down_cpus(want: DesiredCgroup, observed: ObservedCgroups) -> CpuSet:
    there = observed.get(want.path)
    found = there.get(Attribute.CPUSET_CPUS_EXCLUSIVE) if there else None
    return found if isinstance(found, CpuSet) else CpuSet()
