"""What a job's end says on request, in one line: where it ran, what it used and waited for, and how much others ran there."""

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.job_usage import JobUsage
from nodeagent.formats.kernel.usage import remote_bytes
from nodeagent.views.wording.words import bytes_text


class JobPlace(Struct, frozen=True):
    """Where a job runs, as the agent says."""

    pod: str
    cgroup: str
    exclusive_cpus: CpuSet
    shared_cpus: CpuSet
    nodes: NumaSet
    """NUMA nodes of its CPUs."""


def report_text(place: JobPlace, elapsed_us: int, first: JobUsage, last: JobUsage, most_remote: int | None) -> str:
    """Return the line, with its end.

    Args:
        place: of the job.
        elapsed_us: between the two looks.
        first: before the command began.
        last: after it had ended, while its cgroup was there.
        most_remote: the most bytes that any look found on other nodes than those of its CPUs. None: no look found out.
    """
    cpus = f"CPUs {place.exclusive_cpus}" if place.exclusive_cpus else f"shared CPUs {place.shared_cpus}"
    parts = (
        f"{place.pod}: {_seconds(elapsed_us)} on {cpus} of NUMA {place.nodes}",
        _used(last),
        _memory(last, most_remote),
        _others(place, first, last),
    )
    return f"nodeagent: {'; '.join(parts)}\n"


def _used(last: JobUsage) -> str:
    cpu = last.usage.cpu
    if cpu is None:
        return "its CPU time is not known"
    return f"{_seconds(cpu.usage_us)} of CPU time, throttled for {_seconds(cpu.throttled_us)}"


def _memory(last: JobUsage, most_remote: int | None) -> str:
    peak = "memory: not known how much" if last.peak_bytes is None else f"memory: at most {_bytes(last.peak_bytes)}"
    return f"{peak}, {'not known' if most_remote is None else _bytes(most_remote)} on other nodes"


def remote_now(place: JobPlace, usage: JobUsage) -> int | None:
    """Return the bytes that are on other nodes than those of its CPUs; None: not known."""
    return remote_bytes(usage.usage, place.nodes)


def _others(place: JobPlace, first: JobUsage, last: JobUsage) -> str:
    """Subtract what the job used from all that ran on its CPUs."""
    if place.shared_cpus:
        return "others share these CPUs"
    was, now, used = first.usage.cpu, last.usage.cpu, (first.run_ns, last.run_ns)
    before, after = used
    if was is None or now is None or before is None or after is None:
        return "not known how long others ran there"
    ran_ns = sum(after.get(cpu, 0) - before.get(cpu, 0) for cpu in place.exclusive_cpus)
    others_us = max(0, ran_ns // 1000 - (now.usage_us - was.usage_us))
    return f"others ran there for {_seconds(others_us)} (who: only `nodeagent interference` counts)"


def _seconds(us: int) -> str:
    return f"{us / 1_000_000:.2f} s"


def _bytes(size: int) -> str:
    return bytes_text(size) if size else "0"
