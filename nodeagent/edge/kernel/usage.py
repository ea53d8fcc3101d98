"""CPU and memory use: CPU times from psutil, and the unparsed contents of cgroup files and scheduler statistics."""

import os
from collections.abc import Mapping

from msgspec import Struct

from nodeagent.formats.kernel.pressure import PRESSURES


class UsageText(Struct, frozen=True):
    """Contents of two files of a cgroup. None means that a file can't be read, for instance because its controller isn't enabled."""

    cpu_stat: str | None
    numa_stat: str | None


def read_cpu_times_us() -> tuple[tuple[int, int], ...]:
    """Return the busy time and the total time of each online CPU, in microseconds since boot, ordered by CPU.

    I/O wait doesn't count as busy time.
    """
    import psutil  # noqa: PLC0415 - the report of a job doesn't need it

    times = []
    for cpu in psutil.cpu_times(percpu=True):
        # user and nice already include the guest times (proc(5))
        whole = cpu.user + cpu.nice + cpu.system + cpu.idle + cpu.iowait + cpu.irq + cpu.softirq + cpu.steal
        times.append((int(1_000_000 * (whole - cpu.idle - cpu.iowait)), int(1_000_000 * whole)))
    return tuple(times)


def read_usage(root: str, paths: Mapping[str, str]) -> dict[str, UsageText]:
    """Read the files about CPU and memory use of several cgroups.

    Args:
        root: directory of the topmost cgroup.
        paths: paths of the cgroups below `root`, by names that the caller chooses. The result has the same names.
    """
    return {name: _read_usage(f"{root}/{path}") for name, path in paths.items()}


def _read_usage(cgroup: str) -> UsageText:
    return UsageText(_read(f"{cgroup}/cpu.stat"), _read(f"{cgroup}/memory.numa_stat"))


class PressureText(Struct, frozen=True):
    """Contents of a cgroup's throttling and pressure files. A file that can't be read is None, or missing from the mapping."""

    cpu_stat: str | None
    by_resource: Mapping[str, str]
    """Contents of the pressure files (PSI), by resource: cpu, memory, irq."""


def read_pressure(cgroup: str) -> PressureText:
    """Read the throttling and pressure files in a cgroup's directory."""
    texts = {resource: _read(f"{cgroup}/{resource}.pressure") for resource in dict(PRESSURES)}
    return PressureText(_read(f"{cgroup}/cpu.stat"), {name: text for name, text in texts.items() if text is not None})


class JobUsageText(Struct, frozen=True):
    """Contents of the files for the report on a job. None means that a file can't be read."""

    cgroup: UsageText
    memory_peak: str | None
    schedstat: str | None
    memory_events: str | None


def read_job_usage(cgroup: str, root: str = "") -> JobUsageText:
    """Read the files about a job's CPU and memory use, and the scheduler statistics of all CPUs. `root` is the directory that contains
    proc/.
    """
    events, peak = read_memory_end(cgroup)
    return JobUsageText(_read_usage(cgroup), peak, _read(f"{root}/proc/schedstat"), events)


def read_memory_end(cgroup: str) -> tuple[str | None, str | None]:
    """Read `memory.events` and `memory.peak` in a cgroup's directory. None means that a file can't be read."""
    return _read(f"{cgroup}/memory.events"), _read(f"{cgroup}/memory.peak")


def _read(file: str) -> str | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(descriptor, 65536), b"")).decode(errors="replace")
        finally:
            os.close(descriptor)
    except OSError:
        return None
