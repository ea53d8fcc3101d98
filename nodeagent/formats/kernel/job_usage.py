"""What the kernel has counted of one cgroup and its CPUs, at one moment. A counter that can't be read is None, not 0."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.formats.kernel.usage import ContainerUsage, container_usage

_RUN_TIME = 7
"""Which number of a CPU's line is the time that tasks ran on it, in nanoseconds (sched-stats.rst); the idle task doesn't count."""


class JobUsage(Struct, frozen=True):
    usage: ContainerUsage
    peak_bytes: int | None
    """The most memory that it had at once."""
    run_ns: Mapping[int, int] | None
    """How long tasks ran since boot, by CPU; one that still runs counts when it leaves its CPU."""


def job_usage(cpu_stat: str | None, numa_stat: str | None, memory_peak: str | None, schedstat: str | None) -> JobUsage:
    """Read the files; what is in an unexpected format is unknown."""
    peak = (memory_peak or "").strip()
    return JobUsage(
        container_usage(cpu_stat, numa_stat),
        int(peak) if peak.isascii() and peak.isdigit() else None,
        None if schedstat is None else _run_times(schedstat),
    )


def _run_times(text: str) -> dict[int, int] | None:
    found: dict[int, int] = {}
    for line in text.splitlines():
        name, *numbers = line.split()[: _RUN_TIME + 1] or [""]
        cpu = name.removeprefix("cpu")
        if not (name.startswith("cpu") and cpu.isascii() and cpu.isdigit()):
            continue
        if len(numbers) < _RUN_TIME or not (numbers[-1].isascii() and numbers[-1].isdigit()):
            return None
        found[int(cpu)] = int(numbers[-1])
    return found or None
