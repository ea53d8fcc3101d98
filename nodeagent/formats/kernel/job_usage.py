"""Usage counters of a job's cgroup and its CPUs at one time. An unreadable counter is None, not 0."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.formats.kernel.usage import ContainerUsage, parse_container_usage

_RUN_TIME = 7
"""Position of the nanoseconds that tasks ran in a CPU's line (sched-stats.rst). The idle task doesn't count."""


class JobUsage(Struct, frozen=True):
    usage: ContainerUsage
    peak_bytes: int | None
    """Peak memory use of the job."""
    run_ns: Mapping[int, int] | None
    """Nanoseconds that tasks ran since boot, by CPU. A running task is added when it leaves its CPU."""


def parse_job_usage(
    cpu_stat: str | None, numa_stat: str | None, memory_peak: str | None, schedstat: str | None
) -> JobUsage:
    """Parse the files. Values in an unexpected format are None."""
    peak = (memory_peak or "").strip()
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
    peak_bytes = int(peak) if peak.isascii() and peak.isdigit() else None
    return JobUsage(parse_container_usage(cpu_stat, numa_stat), peak_bytes, run_ns or None)
