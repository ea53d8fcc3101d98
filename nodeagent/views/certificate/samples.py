"""Summary of the samples that were taken while a command ran. A longer run doesn't make the summary larger."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.run_counters import NUMA_STAT, STAT, FileTexts, frequency_file, parse_cpu_times_us
from nodeagent.formats.kernel.usage import parse_container_usage, remote_bytes
from nodeagent.views.certificate.intervals import Interval, halve_intervals, measure_interval

BUSY_NS = 250_000_000
"""Minimum time, in nanoseconds, between two samples from which a CPU's load is computed. With a shorter time, the load would be inexact,
because /proc/stat has a precision of only 10 ms.

Samples at the start of a run are closer together than this. Their frequencies aren't used, because governors are still raising the
frequency then.
"""
_BUSY_PER_MILLE = 900
"""Minimum share of the time between two samples, in thousandths, for which a CPU must be busy for its frequency to be used."""
_MOST_INTERVALS = 128


class Samples(Struct, frozen=True):
    count: int = 0
    memory_bytes: dict[int, int] | None = None
    """Memory on each NUMA node, in the sample with the most remote memory. None means that no sample had this information."""
    remote_bytes: int = 0
    """Bytes of remote memory in the sample of `memory_bytes`."""
    khz: Mapping[int, tuple[int, int]] = {}
    """Lowest and highest frequency of each CPU while the CPU was busy."""
    intervals: tuple[Interval, ...] = ()


def add_sample(
    samples: Samples,
    texts: tuple[FileTexts, FileTexts, FileTexts],
    cpus: CpuSet,
    siblings: CpuSet | None,
    nodes: NumaSet,
) -> Samples:
    """Add a sample to the summary.

    Args:
        samples: summary of the earlier samples.
        texts: three samples: an older one (the CPUs' load is measured since then), the previous one, and the one to add.
        cpus: CPUs of the job.
        siblings: the other threads of the job's cores. None means that these threads are unknown.
        nodes: NUMA nodes of the job's CPUs.
    """
    since, before, now = texts
    usage = parse_container_usage(None, now.files.get(NUMA_STAT))
    remote = remote_bytes(usage, nodes)
    memory = samples.memory_bytes, samples.remote_bytes
    if usage.memory_bytes is not None and remote is not None:
        known = samples.memory_bytes or {}
        rank = remote, sum(usage.memory_bytes.values())
        if samples.memory_bytes is None or rank > (samples.remote_bytes, sum(known.values())):
            memory = dict(usage.memory_bytes), remote
    busy = _find_busy_cpus(since, now) & cpus
    found = {cpu: khz for cpu in busy if (khz := now.number(frequency_file(cpu, "scaling_cur_freq"))) is not None}
    ranges = {cpu: (khz, khz, *samples.khz.get(cpu, ())) for cpu, khz in found.items()}
    intervals = (*samples.intervals, measure_interval(before, now, cpus, siblings, nodes))
    return Samples(
        samples.count + 1,
        *memory,
        {**samples.khz, **{cpu: (min(khz), max(khz)) for cpu, khz in ranges.items()}},
        halve_intervals(intervals) if len(intervals) > _MOST_INTERVALS else intervals,
    )


def _find_busy_cpus(before: FileTexts, now: FileTexts) -> CpuSet:
    if now.at_ns - before.at_ns < BUSY_NS:
        return CpuSet()
    was, ended = (parse_cpu_times_us(texts.files.get(STAT, "")) for texts in (before, now))
    most_idle_us = (1000 - _BUSY_PER_MILLE) * (now.at_ns - before.at_ns) // 1_000_000
    return CpuSet.from_ids(
        cpu
        for cpu, times in ended.items()
        if cpu in was and sum(times[name] - was[cpu][name] for name in ("idle", "iowait")) <= most_idle_us
    )
