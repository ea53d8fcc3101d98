"""Partitions of cpusets: where they lie, and in which order they come and go. They keep the host's processes off exclusive CPUs (D27).

A partition needs its CPUs in `cpuset.cpus.exclusive` of its own cgroup and of each one above it, where siblings' sets may not overlap, and
no sibling's `cpuset.cpus` may lie within one. So what ends goes first, from the bottom up: the partition, then its CPUs; then what begins
comes from the top down. Knows neither pods nor the file system.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from nodeagent.core.model.cgroup import MEMBER, Attribute, DesiredCgroup, ObservedCgroups, Partition, PartitionKind
from nodeagent.core.model.idset import CpuSet

PARTITION_ATTRIBUTES = frozenset({Attribute.CPUSET_CPUS_EXCLUSIVE, Attribute.CPUSET_CPUS_PARTITION})
"""A container starts whatever becomes of these."""

NO_PARTITION = ((Attribute.CPUSET_CPUS_EXCLUSIVE, CpuSet()), (Attribute.CPUSET_CPUS_PARTITION, MEMBER))


def without_partition(want: DesiredCgroup) -> DesiredCgroup:
    return replace(want, attributes=tuple(each for each in want.attributes if each[0] not in PARTITION_ATTRIBUTES))


def partitioned(
    pod: DesiredCgroup,
    containers: Sequence[DesiredCgroup],
    own: Mapping[str, CpuSet],
    *,
    isolated: CpuSet,
    is_unbalanced: bool,
) -> tuple[DesiredCgroup, ...]:
    """Give a pod's cgroups their partitions.

    If every container has CPUs of its own, and one has an init container's, which two partitions beside each other could not, they are one
    partition, the pod's; so is a pod's only container. In any other pod each container with CPUs that no other one of its pod runs on has
    its own partition: in the pod's, those in the shared pool would have no CPU, and one that loses its last CPU would have the others'. The
    kernel takes CPUs that are isolated at boot in no partition that it balances: they and others are never together in one of that kind.

    Args:
        pod: its cgroup.
        containers: those of its containers.
        own: by path, the CPUs promised to those of them that have CPUs of their own now.
        isolated: CPUs that the kernel balances no load over since boot (isolcpus).
        is_unbalanced: the pod asks for partitions of the kind `isolated`.
    """
    kind_of = partial(_kind, isolated=isolated, is_unbalanced=is_unbalanced)
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


def _kind(cpus: CpuSet, *, isolated: CpuSet, is_unbalanced: bool) -> Partition:
    """Return the partition that these CPUs can be."""
    if cpus and (is_unbalanced or cpus <= isolated):
        return Partition(PartitionKind.ISOLATED)
    return Partition(PartitionKind.ROOT) if cpus and cpus.isdisjoint(isolated) else MEMBER


def _union(sets: Iterable[CpuSet]) -> CpuSet:
    union = CpuSet()
    for cpus in sets:
        union |= cpus
    return union


class Step(Struct, frozen=True):
    """One write."""

    path: str
    attribute: Attribute
    value: CpuSet | Partition
    before: CpuSet | Partition | None
    grants: CpuSet = CpuSet()
    """CPUs that a partition begins with. Whoever else is there would be driven anywhere, also onto others' exclusive CPUs."""


def endings(desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Step]:
    """End each partition that shall not be there as it is, then withdraw the CPUs that are not for partitions any more."""
    for want in reversed(desired):
        before = _partition(want, observed)
        if before is not None and _has_to_end(want, observed):
            yield Step(want.path, Attribute.CPUSET_CPUS_PARTITION, MEMBER, before)
    for want in reversed(desired):
        before_cpus = _handed_down(want, observed)
        if before_cpus - want.partition_cpus() and _has_any(want):
            kept = before_cpus & want.partition_cpus()
            yield Step(want.path, Attribute.CPUSET_CPUS_EXCLUSIVE, kept, before_cpus)


def beginnings(desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> Iterator[Step]:
    """Hand CPUs down to partitions, then begin them; also those that the kernel has ended."""
    for want in desired:
        before_cpus = _handed_down(want, observed)
        if want.partition_cpus() - before_cpus:
            kept = before_cpus & want.partition_cpus()
            yield Step(want.path, Attribute.CPUSET_CPUS_EXCLUSIVE, want.partition_cpus(), kept)
    for want in desired:
        wanted = want.get(Attribute.CPUSET_CPUS_PARTITION)
        if not isinstance(wanted, Partition) or wanted == MEMBER:
            continue
        before = None if _has_to_end(want, observed) else _partition(want, observed)
        if before != wanted:
            yield Step(want.path, Attribute.CPUSET_CPUS_PARTITION, wanted, before, grants=want.partition_cpus())


def running_without(desired: Sequence[DesiredCgroup], observed: ObservedCgroups) -> CpuSet:
    """Return the CPUs of the partitions that are yet to begin although there are processes already: maybe the kernel refuses them."""
    begin = (step for step in beginnings(desired, observed) if step.path in observed)
    return _union(step.grants for step in begin if observed[step.path].is_populated)


def _has_to_end(want: DesiredCgroup, observed: ObservedCgroups) -> bool:
    before = _partition(want, observed)
    if before is None or before == MEMBER:
        return False
    return want.get(Attribute.CPUSET_CPUS_PARTITION) == MEMBER or _handed_down(want, observed) != want.partition_cpus()


def _has_any(want: DesiredCgroup) -> bool:
    return want.get(Attribute.CPUSET_CPUS_EXCLUSIVE) is not None


def _partition(want: DesiredCgroup, observed: ObservedCgroups) -> Partition | None:
    there = observed.get(want.path)
    found = there.get(Attribute.CPUSET_CPUS_PARTITION) if there else None
    return found if isinstance(found, Partition) else None


def _handed_down(want: DesiredCgroup, observed: ObservedCgroups) -> CpuSet:
    there = observed.get(want.path)
    found = there.get(Attribute.CPUSET_CPUS_EXCLUSIVE) if there else None
    return found if isinstance(found, CpuSet) else CpuSet()
