"""Texts about the end of a job: the report line (CPUs, resource usage, throttling, time of other tasks), and the line after an OOM kill."""

from collections.abc import Mapping

from msgspec import Struct

from nodeagent.core.model.idset import CpuSet, NumaSet
from nodeagent.formats.kernel.usage import JobUsage, remote_bytes
from nodeagent.views.wording.words import format_bytes, format_readable_bytes


class JobLocation(Struct, frozen=True):
    """CPUs, memory nodes and cgroup of a job, as reported by the agent."""

    pod: str
    cgroup: str
    exclusive_cpus: CpuSet
    shared_cpus: CpuSet
    nodes: NumaSet
    """NUMA nodes of the job's CPUs."""


def format_report(
    location: JobLocation, elapsed_us: int, first: JobUsage, last: JobUsage, peak_remote_bytes: int | None
) -> str:
    """Format the report as one line.

    Args:
        location: the CPUs and memory nodes of the job.
        elapsed_us: the time between the two samples.
        first: the usage before the command started.
        last: the usage after the command's end, before the job's cgroup was removed.
        peak_remote_bytes: the largest amount of memory that any sample found on NUMA nodes without CPUs of the job. None means that this
            amount is unknown.
    """
    cpus = f"CPUs {location.exclusive_cpus}" if location.exclusive_cpus else f"shared CPUs {location.shared_cpus}"
    usage, time = last.usage.cpu, "its CPU time is unknown"
    if usage is not None:
        time = f"{_format_seconds(usage.usage_us)} of CPU time, throttled for {_format_seconds(usage.throttled_us)}"
    peak = "unknown" if last.peak_bytes is None else f"at most {_format_bytes(last.peak_bytes)}"
    remote = "unknown" if peak_remote_bytes is None else _format_bytes(peak_remote_bytes)
    parts = (
        f"{location.pod}: {_format_seconds(elapsed_us)} on {cpus} of NUMA {location.nodes}",
        time,
        f"memory: {peak}, {remote} on other nodes",
        *(("the OOM killer has ended processes of it",) if last.had_oom_kill else ()),
        _format_time_of_others(location, first, last),
    )
    return f"nodeagent: {'; '.join(parts)}\n"


def format_oom_end(pod: str, limit: str, events: Mapping[str, int], peak_bytes: int | None) -> str:
    """Format the line that the terminal shows after the OOM killer has ended a job.

    Args:
        pod: the name of the job's pod.
        limit: the value of `--memory`.
        events: the counters in the cgroup's `memory.events`.
        peak_bytes: the peak memory use of the job. None means that the peak is unknown.
    """
    peak = "unknown" if peak_bytes is None else format_readable_bytes(peak_bytes)
    what_helps = "request more memory" if events.get("oom", 0) else "the machine itself was out of memory"
    return f"nodeagent: the OOM killer has ended {pod}: memory peak {peak} of --memory {limit}; {what_helps}"


def measure_remote_bytes(location: JobLocation, usage: JobUsage) -> int | None:
    """Return how many bytes of the job's memory are on NUMA nodes without CPUs of the job. None means that the amount is unknown."""
    return remote_bytes(usage.usage, location.nodes)


def _format_time_of_others(location: JobLocation, first: JobUsage, last: JobUsage) -> str:
    """Format how long other tasks ran on the job's CPUs: the time of all tasks on these CPUs minus the job's own CPU time."""
    if location.shared_cpus:
        return "others share these CPUs"
    was, now, used = first.usage.cpu, last.usage.cpu, (first.run_ns, last.run_ns)
    before, after = used
    if was is None or now is None or before is None or after is None:
        return "unknown how long others ran there"
    ran_ns = sum(after.get(cpu, 0) - before.get(cpu, 0) for cpu in location.exclusive_cpus)
    others_us = max(0, ran_ns // 1000 - (now.usage_us - was.usage_us))
    return f"others ran there for {_format_seconds(others_us)} (`nodeagent interference` tells which tasks)"


def _format_seconds(us: int) -> str:
    return f"{us / 1_000_000:.2f} s"


def _format_bytes(size: int) -> str:
    return format_bytes(size) if size else "0"
