"""Cpuset partitions, which keep host processes off exclusive CPUs (D27). This module decides which cgroups become partitions, and in which
order partitions start and end.

A partition's CPUs must be listed in `cpuset.cpus.exclusive` of the partition and of each cgroup above it. Two siblings must not list the
same CPU in this file, and a sibling's `cpuset.cpus` must not be a subset of these CPUs. All old partitions therefore end before new
partitions start. Partitions end from the bottom up, each before its CPUs are withdrawn, and start from the top down. This module knows
cgroups but no pods, and doesn't access files.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import MEMBER, Attribute, DesiredCgroup, ObservedCgroups, Partition, PartitionKind
from nodeagent.core.model.idset import CpuSet

PARTITION_ATTRIBUTES = frozenset({Attribute.CPUSET_CPUS_EXCLUSIVE, Attribute.CPUSET_CPUS_PARTITION})
"""Cgroup files that concern partitions. A container starts even if these files can't be written."""

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
    """Add the desired partitions to a pod's cgroups.

    The pod's cgroup becomes the partition if the pod has one container, or if all its containers have exclusive CPUs and some reuse the
    CPUs of an init container (two sibling partitions can't share CPUs). In any other pod, each container whose CPUs no other container of
    the pod uses becomes a partition. The whole pod can't be the partition there: containers of the shared pool would have no CPUs in it,
    and a container that loses its last CPU would run on the CPUs of the others. CPUs isolated at boot are never in one partition with
    others, because the kernel accepts them only in a partition of the kind `isolated`.

    Args:
        pod: the pod's cgroup.
        containers: the cgroups of its containers.
        own: the exclusive CPUs of the containers that have some, by cgroup path.
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
    """Return the kind of partition that the kernel accepts for these CPUs, or `MEMBER` if it accepts none."""
    if cpus and (is_unbalanced or cpus <= isolated):
        return Partition(PartitionKind.ISOLATED)
    return Partition(PartitionKind.ROOT) if cpus and cpus.isdisjoint(isolated) else MEMBER


def _union(sets: Iterable[CpuSet]) -> CpuSet:
    union = CpuSet()
    for cpus in sets:
        union |= cpus
    return union


class Step(Struct, frozen=True):
    """Write of one value to one cgroup file, as a step in starting or ending a partition."""

    path: str
    attribute: Attribute
    value: CpuSet | Partition
    before: CpuSet | Partition | None
    grants: CpuSet = CpuSet()
    """CPUs of the partition that this write starts. The kernel then moves other processes off these CPUs, possibly onto exclusive CPUs of
    other cgroups.
    """


def end_partitions(desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Step]:
    """End each partition whose kind or CPUs are not as desired. Then remove the CPUs that partitions don't need any more from
    `cpuset.cpus.exclusive`.
    """
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
    """Add each partition's CPUs to `cpuset.cpus.exclusive`, from the top down. Then start the partitions, and restart those that the kernel
    has invalidated.
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
    """Return the CPUs of cgroups with processes that should be partitions but aren't, for instance because the kernel refused the
    partition.
    """
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
