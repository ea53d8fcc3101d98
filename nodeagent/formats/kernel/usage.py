"""Usage of containers and CPUs: kernel counters in, rates between two samples out. An unreadable counter is None, not 0."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.cgroup_values import CgroupValueError, parse_flat_keyed

_RESIDENT = ("anon", "file")
"""From memory.numa_stat: memory that a process touches itself. The rest is the kernel's, or part of these two."""


class CpuStat(Struct, frozen=True):
    usage_us: int
    periods: int
    """0: there was no quota, or nothing ran."""
    throttled_periods: int
    throttled_us: int = 0


class ContainerUsage(Struct, frozen=True):
    cpu: CpuStat | None
    memory_bytes: Mapping[int, int] | None
    """By NUMA node."""


class UsageSample(Struct, frozen=True):
    """All counters at one moment."""

    at_us: int
    """By a clock that never jumps."""
    cpus: Mapping[int, tuple[int, int]]
    """Busy and total time in microseconds, by CPU."""
    containers: Mapping[str, ContainerUsage]
    """By cgroup path."""


class ContainerRate(Struct, frozen=True):
    used_milli: int | None
    """CPU time used, in thousandths of a CPU."""
    throttled_percent: int | None
    """Of the periods in which it ran; None: it has no quota, or did not run."""


class Rates(Struct, frozen=True):
    """What was used between two looks."""

    cpus: Mapping[int, int]
    """Busy, in percent, by CPU."""
    containers: Mapping[str, ContainerRate]


NO_RATES = Rates({}, {})
NO_RATE = ContainerRate(None, None)


def container_usage(cpu_stat: str | None, numa_stat: str | None) -> ContainerUsage:
    """Read both files; values in an unexpected format are unknown."""
    return ContainerUsage(_cpu_stat(cpu_stat), _numa_stat(numa_stat))


def times_by_cpu(times_us: Sequence[tuple[int, int]], online: CpuSet) -> Mapping[int, tuple[int, int]]:
    """Assign busy and total times, which come in the order of the CPUs. While a CPU comes or goes their assignment is unknown."""
    return dict(zip(online, times_us, strict=True)) if len(times_us) == len(online) else {}


def rates(before: UsageSample, after: UsageSample) -> Rates:
    """Compute the usage between two samples. Containers that are new, or whose counters went back, are missing."""
    cpus = {}
    for cpu, (busy_us, whole_us) in after.cpus.items():
        was_busy_us, was_whole_us = before.cpus.get(cpu, (busy_us, whole_us))
        if whole_us > was_whole_us and busy_us >= was_busy_us:
            cpus[cpu] = min(100, round(100 * (busy_us - was_busy_us) / (whole_us - was_whole_us)))
    containers = {}
    for path, now in after.containers.items():
        was = before.containers.get(path)
        if was is not None and was.cpu is not None and now.cpu is not None and after.at_us > before.at_us:
            rate = _rate(was.cpu, now.cpu, after.at_us - before.at_us)
            if rate is not None:
                containers[path] = rate
    return Rates(cpus, containers)


def remote_bytes(usage: ContainerUsage, near: NumaSet) -> int | None:
    """Return how much of a container's memory lies on NUMA nodes that none of its CPUs belong to."""
    if usage.memory_bytes is None:
        return None
    return sum(size for node, size in usage.memory_bytes.items() if node not in near)


def _rate(was: CpuStat, now: CpuStat, elapsed_us: int) -> ContainerRate | None:
    used_us, periods = now.usage_us - was.usage_us, now.periods - was.periods
    throttled = now.throttled_periods - was.throttled_periods
    if used_us < 0 or periods < 0 or throttled < 0:  # the cgroup was recreated
        return None
    return ContainerRate(round(1000 * used_us / elapsed_us), round(100 * throttled / periods) if periods else None)


def _cpu_stat(text: str | None) -> CpuStat | None:
    try:
        found = parse_flat_keyed(text or "")
    except CgroupValueError:
        return None
    usage_us = found.get("usage_usec")
    if usage_us is None:
        return None
    return CpuStat(usage_us, found.get("nr_periods", 0), found.get("nr_throttled", 0), found.get("throttled_usec", 0))


def _numa_stat(text: str | None) -> dict[int, int] | None:
    """Read a nested keyed file: `anon N0=4096 N1=0`."""
    if text is None:
        return None
    found: dict[int, int] = {}
    for line in text.splitlines():
        key, *nodes = line.split(" ")
        if key not in _RESIDENT:
            continue
        for item in nodes:
            node, _, size = item.removeprefix("N").partition("=")
            if not (item.startswith("N") and node.isdecimal() and size.isdecimal()):
                return None
            found[int(node)] = found.get(int(node), 0) + int(size)
    return found
