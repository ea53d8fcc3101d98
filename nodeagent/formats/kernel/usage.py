"""Usage rates of containers and CPUs, derived from two samples of kernel counters. An unreadable counter is None instead of 0."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.cgroup_values import CgroupValueError, parse_flat_keyed

_RESIDENT = ("anon", "file")
"""Keys of memory.numa_stat that make up the resident memory of processes. The other keys are kernel memory, or parts of these two values.
"""
_RUN_TIME = 7
"""Position of a CPU's run time in its line of /proc/schedstat (sched-stats.rst). The run time is in nanoseconds and excludes the idle task.
"""


class CpuStat(Struct, frozen=True):
    usage_us: int
    periods: int
    """Number of periods with a quota. 0 if there was no quota or no task ran."""
    throttled_periods: int
    throttled_us: int = 0


class ContainerUsage(Struct, frozen=True):
    cpu: CpuStat | None
    memory_bytes: Mapping[int, int] | None
    """Memory in bytes by NUMA node."""


class JobUsage(Struct, frozen=True):
    """Usage of a job's cgroup and its CPUs at one time."""

    usage: ContainerUsage
    peak_bytes: int | None
    """Peak memory use of the job."""
    run_ns: Mapping[int, int] | None
    """Nanoseconds that tasks have run since boot, by CPU. The time of a running task is added when the task leaves the CPU."""
    had_oom_kill: bool = False
    """Whether the OOM killer has ended a process of the job."""


class UsageSample(Struct, frozen=True):
    """Times of all CPUs and usage of all containers, read at the same time."""

    at_us: int
    """Time of the sample, in microseconds of a monotonic clock."""
    cpus: Mapping[int, tuple[int, int]]
    """Busy and total time in microseconds, by CPU."""
    containers: Mapping[str, ContainerUsage]
    """Usage by cgroup path."""


class ContainerRate(Struct, frozen=True):
    used_milli: int | None
    """CPU time used, in thousandths of a CPU."""
    throttled_percent: int | None
    """Share of throttled periods. None if the container has no quota or did not run."""


class Rates(Struct, frozen=True):
    """Usage of containers and CPUs between two samples."""

    cpus: Mapping[int, int]
    """Busy time in percent, by CPU."""
    containers: Mapping[str, ContainerRate]


NO_RATES = Rates({}, {})
NO_RATE = ContainerRate(None, None)


def parse_container_usage(cpu_stat: str | None, numa_stat: str | None) -> ContainerUsage:
    """Parse a container's cpu.stat and memory.numa_stat. Values in an unexpected format are None."""
    return ContainerUsage(_parse_cpu_stat(cpu_stat), _parse_numa_stat(numa_stat))


def parse_job_usage(
    cpu_stat: str | None,
    numa_stat: str | None,
    memory_peak: str | None,
    schedstat: str | None,
    memory_events: str | None = None,
) -> JobUsage:
    """Parse the files about a job's cgroup and its CPUs. Values in an unexpected format are None."""
    run_ns: dict[int, int] = {}
    for line in (schedstat or "").splitlines():
        name, *numbers = line.split()[: _RUN_TIME + 1] or [""]
        cpu = name.removeprefix("cpu")
        if not (name.startswith("cpu") and cpu.isascii() and cpu.isdigit()):
            continue
        if len(numbers) < _RUN_TIME or not (numbers[-1].isascii() and numbers[-1].isdigit()):
            run_ns = {}
            break
        run_ns[int(cpu)] = int(numbers[-1])
    events, peak_bytes = parse_memory_end(memory_events, memory_peak)
    had_oom_kill = events.get("oom_kill", 0) > 0
    return JobUsage(parse_container_usage(cpu_stat, numa_stat), peak_bytes, run_ns or None, had_oom_kill)


def parse_memory_end(memory_events: str | None, memory_peak: str | None) -> tuple[Mapping[str, int], int | None]:
    """Parse the counters of `memory.events`, and the peak of memory use in bytes. Malformed counters become an empty mapping, and a
    malformed peak becomes None.
    """
    events: Mapping[str, int] = {}
    with suppress(CgroupValueError):
        events = parse_flat_keyed(memory_events or "")
    peak = (memory_peak or "").strip()
    return events, int(peak) if peak.isascii() and peak.isdigit() else None


def times_by_cpu(times_us: Sequence[tuple[int, int]], online: CpuSet) -> Mapping[int, tuple[int, int]]:
    """Map each CPU to its busy and total time. `times_us` contains the times in the order of the CPUs' numbers. The result is empty
    while a CPU is added or removed, because the numbers of times and CPUs differ then.
    """
    return dict(zip(online, times_us, strict=True)) if len(times_us) == len(online) else {}


def compute_rates(before: UsageSample, after: UsageSample) -> Rates:
    """Compute the usage between two samples. Containers that are new or have decreased counters are left out."""
    cpus = {}
    for cpu, (busy_us, whole_us) in after.cpus.items():
        was_busy_us, was_whole_us = before.cpus.get(cpu, (busy_us, whole_us))
        if whole_us > was_whole_us and busy_us >= was_busy_us:
            cpus[cpu] = min(100, round(100 * (busy_us - was_busy_us) / (whole_us - was_whole_us)))
    containers = {}
    for path, now in after.containers.items():
        was = before.containers.get(path)
        if was is not None and was.cpu is not None and now.cpu is not None and after.at_us > before.at_us:
            used_us, periods = now.cpu.usage_us - was.cpu.usage_us, now.cpu.periods - was.cpu.periods
            throttled = now.cpu.throttled_periods - was.cpu.throttled_periods
            if min(used_us, periods, throttled) >= 0:  # a negative difference means that the cgroup was recreated
                percent = round(100 * throttled / periods) if periods else None
                containers[path] = ContainerRate(round(1000 * used_us / (after.at_us - before.at_us)), percent)
    return Rates(cpus, containers)


def remote_bytes(usage: ContainerUsage, near: NumaSet) -> int | None:
    """Return the bytes of a container's memory that are on other NUMA nodes than `near`, its CPUs' nodes."""
    if usage.memory_bytes is None:
        return None
    return sum(size for node, size in usage.memory_bytes.items() if node not in near)


def _parse_cpu_stat(text: str | None) -> CpuStat | None:
    try:
        found = parse_flat_keyed(text or "")
    except CgroupValueError:
        return None
    usage_us = found.get("usage_usec")
    if usage_us is None:
        return None
    return CpuStat(usage_us, found.get("nr_periods", 0), found.get("nr_throttled", 0), found.get("throttled_usec", 0))


def _parse_numa_stat(text: str | None) -> dict[int, int] | None:
    """Parse a nested keyed file with lines such as `anon N0=4096 N1=0`."""
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
