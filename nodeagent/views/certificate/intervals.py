"""Shares of a run's time, such as steal or throttling, computed from two samples of the kernel's counters."""

from collections.abc import Mapping
from operator import itemgetter

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.run_counters import (
    CGROUPS,
    CPU_STAT,
    NUMA_STAT,
    SCHEDSTAT,
    STAT,
    FileTexts,
    parse_cpu_times_us,
)
from nodeagent.formats.kernel.usage import parse_container_usage, parse_job_usage, remote_bytes

TICK_US = 10_000
"""Precision, in microseconds, of a time in /proc/stat, and therefore the largest error of a difference between two such times."""
_INTERRUPTIONS = ("irq", "softirq", "steal")
_NOT_BUSY = ("idle", "iowait", "steal")
_NOT_OF_TASKS = ("idle", "iowait", *_INTERRUPTIONS)


class Interval(Struct, frozen=True):
    elapsed_us: int
    rates: Mapping[str, int]
    """Share of the interval that each disturbance took, in thousandths, by the disturbance's name. Unknown shares are missing."""


def share(part: int, whole: int) -> int:
    """Return `part` as a share of `whole`, in thousandths. The share is at most 1000."""
    return min(1000, round(1000 * part / max(1, whole)))


def subtract_cpu_times(first: FileTexts, last: FileTexts) -> dict[int, dict[str, int]] | None:
    """Return the increase of each column of /proc/stat in microseconds, for each CPU. None means that the increases are unknown."""
    was, now = (parse_cpu_times_us(texts.files.get(STAT, "")) for texts in (first, last))
    if not was or not now:
        return None
    return {
        cpu: {name: max(0, us - was[cpu].get(name, 0)) for name, us in times.items()}
        for cpu, times in now.items()
        if cpu in was
    }


def find_busy_us(first: FileTexts, last: FileTexts, cpus: CpuSet, own_us: int) -> int | None:
    """Return how long tasks that don't belong to the job ran on the job's CPUs. None means that the time is unknown.

    The scheduler's run times are exact, but don't include the time of a task that has not left its CPU yet. The CPUs' non-idle time
    includes such a task, but is imprecise. The function therefore returns the larger of both, after it has subtracted the largest possible
    error from the non-idle time.

    Run times include interrupts and steal time during a task. Some kernels leave these out of the job's own time (IRQ_TIME_ACCOUNTING,
    PARAVIRT_TIME_ACCOUNTING), so they are subtracted from the run times.
    """
    was, now = (parse_job_usage(None, None, None, texts.files.get(SCHEDSTAT)).run_ns for texts in (first, last))
    by_idle_us = _find_busy_us_by_idle(first, last, cpus, own_us)
    found = [] if by_idle_us is None else [by_idle_us]
    if was is not None and now is not None:
        times = subtract_cpu_times(first, last) or {}
        not_of_tasks_us = sum(times.get(cpu, {}).get(name, 0) for cpu in cpus for name in _INTERRUPTIONS)
        run_us = sum(now.get(cpu, 0) - was.get(cpu, 0) for cpu in cpus) // 1000
        found.append(run_us - not_of_tasks_us - own_us)
    return max(0, *found) if found else None


def find_sibling_us(first: FileTexts, last: FileTexts, cpus: CpuSet) -> dict[int, int] | None:
    """Return how long tasks or interrupts kept each of these CPUs busy. None means that the times are unknown.

    Interrupts count as busy time here, so they aren't subtracted from the scheduler's run times.
    """
    was, now = (parse_job_usage(None, None, None, texts.files.get(SCHEDSTAT)).run_ns for texts in (first, last))
    by_idle_us = _find_not_idle_us(first, last, cpus, _NOT_BUSY)
    found = [] if by_idle_us is None else [by_idle_us]
    if was is not None and now is not None:
        found.append({cpu: (now.get(cpu, 0) - was.get(cpu, 0)) // 1000 for cpu in cpus})
    return {cpu: max(0, *(busy_us[cpu] for busy_us in found)) for cpu in cpus} if found else None


def find_throttled_us(first: FileTexts, last: FileTexts, cpus: CpuSet) -> tuple[int, str] | None:
    """Return how long the most restrictive quota kept the job off its CPUs, and the cgroup with that quota. None means that the time is
    unknown.

    The cgroup is given as a path below the mount point, and is empty for the job's own cgroup. The counter of a parent cgroup also counts
    other tasks on other CPUs. Its increase is therefore limited to the time in which the job didn't run.
    """
    found = {}
    was_us, now_us = (texts.counters(CPU_STAT).get("usage_usec", 0) for texts in (first, last))
    idle_us = max(0, len(cpus) * (last.at_ns - first.at_ns) // 1000 - (now_us - was_us))
    for name in last.files:
        if name == CPU_STAT or (name.startswith(f"{CGROUPS}/") and name.endswith("/cpu.stat")):
            was, now = (texts.counters(name).get("throttled_usec") for texts in (first, last))
            if was is not None and now is not None:
                if name == CPU_STAT:
                    found[""] = now - was
                else:
                    found[name.removeprefix(CGROUPS).removesuffix("/cpu.stat")] = min(now - was, idle_us)
    return max(((us, cgroup) for cgroup, us in found.items()), key=itemgetter(0)) if "" in found else None


def _find_busy_us_by_idle(first: FileTexts, last: FileTexts, cpus: CpuSet, own_us: int) -> int | None:
    busy_us = _find_not_idle_us(first, last, cpus, _NOT_OF_TASKS)
    return None if busy_us is None else max(0, sum(busy_us.values()) - own_us)


def _find_not_idle_us(
    first: FileTexts, last: FileTexts, cpus: CpuSet, not_busy: tuple[str, ...]
) -> dict[int, int] | None:
    """Return, for each CPU, the time between two samples minus the time in the columns `not_busy` of /proc/stat. The largest possible error
    is subtracted, too. None means that the time is unknown.
    """
    times = subtract_cpu_times(first, last)
    if times is None or not all(cpu in times for cpu in cpus):
        return None
    elapsed_us = (last.at_ns - first.at_ns) // 1000 - 2 * TICK_US
    return {cpu: max(0, elapsed_us - sum(times[cpu].get(name, 0) for name in not_busy)) for cpu in cpus}


def measure_interval(
    before: FileTexts, now: FileTexts, cpus: CpuSet, siblings: CpuSet | None, nodes: NumaSet
) -> Interval:
    """Compute how the time between two samples was used.

    The scheduler's run times aren't used. They are updated only when a task leaves its CPU, so they may include time of an earlier
    interval.

    Args:
        before: the sample at the start.
        now: the sample at the end.
        cpus: CPUs of the job.
        siblings: the other threads of the job's cores. None means that these threads are unknown.
        nodes: NUMA nodes of the job's CPUs.
    """
    elapsed_us = max(1, (now.at_ns - before.at_ns) // 1000)
    whole_us = elapsed_us * max(1, len(cpus))
    was, used = before.counters(CPU_STAT), now.counters(CPU_STAT)
    times = subtract_cpu_times(before, now)
    usage = parse_container_usage(None, now.files.get(NUMA_STAT))
    remote = remote_bytes(usage, nodes)
    rates: dict[str, int] = {}
    if "usage_usec" in was and "usage_usec" in used:
        others_us = _find_busy_us_by_idle(before, now, cpus, used["usage_usec"] - was["usage_usec"])
        rates |= {} if others_us is None else {"other-tasks": share(others_us, whole_us)}
    if siblings is not None:
        busy_us = _find_not_idle_us(before, now, siblings, _NOT_BUSY)
        rates |= {} if busy_us is None else {"sibling": share(max(busy_us.values(), default=0), elapsed_us)}
    if remote is not None and usage.memory_bytes is not None:
        rates["remote-memory"] = share(remote, sum(usage.memory_bytes.values()))
    if (throttled := find_throttled_us(before, now, cpus)) is not None:
        rates["throttling"] = share(throttled[0], elapsed_us)
    if times is not None and all(cpu in times for cpu in cpus):
        rates["steal"] = share(max((times[cpu].get("steal", 0) for cpu in cpus), default=0), elapsed_us)
    return Interval(elapsed_us, rates)


def halve_intervals(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Merge neighbouring intervals in pairs, so that the number of intervals stays limited even in a long run."""
    return tuple(_join(*intervals[index : index + 2]) for index in range(0, len(intervals), 2))


def _join(first: Interval, second: Interval | None = None) -> Interval:
    if second is None:
        return first
    elapsed_us = first.elapsed_us + second.elapsed_us
    return Interval(
        elapsed_us,
        {
            name: round((rate * first.elapsed_us + second.rates[name] * second.elapsed_us) / elapsed_us)
            for name, rate in first.rates.items()
            if name in second.rates
        },
    )
