"""Usage as the kernel counts it: CPU times from psutil, and the raw text of cgroup files and scheduler statistics."""

import os
from collections.abc import Mapping

from msgspec import Struct


class UsageText(Struct, frozen=True):
    """Texts of two files of a cgroup. None means that a file can't be read, as when the cgroup has just gone or its controller is off."""

    cpu_stat: str | None
    numa_stat: str | None


def cpu_times_us() -> tuple[tuple[int, int], ...]:
    """Return busy and total time of every online CPU, in id order, in microseconds since boot.

    Waiting for a device doesn't count as busy.
    """
    import psutil  # noqa: PLC0415 - what looks at one cgroup alone needs none of it

    times = []
    for cpu in psutil.cpu_times(percpu=True):
        # user and nice include guest times (proc(5))
        whole = cpu.user + cpu.nice + cpu.system + cpu.idle + cpu.iowait + cpu.irq + cpu.softirq + cpu.steal
        times.append((int(1_000_000 * (whole - cpu.idle - cpu.iowait)), int(1_000_000 * whole)))
    return tuple(times)


def read_usage(root: str, paths: Mapping[str, str]) -> dict[str, UsageText]:
    """Read the usage of cgroups.

    Args:
        root: the pods' cgroup.
        paths: path of each cgroup from there, by its name in the result.
    """
    return {
        name: UsageText(_text(f"{root}/{path}/cpu.stat"), _text(f"{root}/{path}/memory.numa_stat"))
        for name, path in paths.items()
    }


class JobUsageText(Struct, frozen=True):
    """Texts for the report of a job. None means that a file can't be read, or that this kernel lacks it."""

    cgroup: UsageText
    memory_peak: str | None
    schedstat: str | None


def read_job_usage(cgroup: str, root: str = "") -> JobUsageText:
    """Read the texts for a cgroup and all CPUs. `root` is the directory above proc/."""
    texts = UsageText(_text(f"{cgroup}/cpu.stat"), _text(f"{cgroup}/memory.numa_stat"))
    return JobUsageText(texts, _text(f"{cgroup}/memory.peak"), _text(f"{root}/proc/schedstat"))


def _text(file: str) -> str | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(descriptor, 65536), b"")).decode(errors="replace")
        finally:
            os.close(descriptor)
    except OSError:
        return None
