"""Kernel threads that are not bound to one CPU, and their affinities.

The agent's own filter of system calls forbids to move them, so the launcher does it. New threads don't inherit the affinity of kthreadd, so
they have to be found again. Workers of unbound workqueues follow /sys/devices/virtual/workqueue/cpumask. If there are cpuset partitions,
the
kernel itself keeps all others off these.
"""

import errno
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
from msgspec import Struct

from nodeagent.core.model.idset import CpuSet
from nodeagent.errors import NodeAgentError
from nodeagent.formats.kernel.task_stat import TaskStat, parse_allowed_cpus, parse_task_stat


class KernelThreadsError(NodeAgentError):
    """The kernel threads cannot be listed."""


class ThreadKey(Struct, frozen=True, order=True):
    """Identity of a thread, because another thread may get its id after it has ended."""

    pid: int
    start_ticks: int
    """Start time since boot, field 22."""


class KernelThread(Struct, frozen=True):
    name: str
    cpus: CpuSet
    """Affinity, including offline CPUs."""
    is_movable: bool
    """Whether it can be moved. The kernel refuses (EINVAL) for a workqueue's worker or rescuer, which moves by itself."""


def move(thread: ThreadKey, cpus: CpuSet) -> str | None:
    """Let a thread run on these CPUs only. Returns the reason of a failure, or None."""
    try:
        if _stat(thread.pid).start_ticks != thread.start_ticks:
            return os.strerror(errno.ESRCH)
        os.sched_setaffinity(thread.pid, cpus)
    except OSError as err:
        return os.strerror(err.errno or 0)
    return None


def _stat(pid: int) -> TaskStat:
    return parse_task_stat(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="backslashreplace"))


def _allowed(pid: int) -> CpuSet:
    """Return the affinity. Unlike sched_getaffinity(2) it includes offline CPUs."""
    return parse_allowed_cpus(Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="backslashreplace"))


def _is_of_nobody(pid: int) -> bool:
    """Whether the thread is in the root cgroup. A thread that works for a process (vhost for a virtual machine) is in its cgroup."""
    return Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii", errors="replace").strip().endswith("0::/")


def unbound(process_ids: Callable[[], Iterable[int]] = psutil.pids) -> dict[ThreadKey, KernelThread]:
    """Return all movable threads by id. Threads that end meanwhile, or that are bound to one CPU, are left out."""
    found = {}
    try:
        pids = tuple(process_ids())
    except OSError as err:
        raise KernelThreadsError(
            f"cannot list /proc: {err.strerror}", hint="see `ulimit -n`; it is tried again"
        ) from err
    for pid in pids:
        try:
            seen = _unbound(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as err:  # to leave it out would mean that it has ended
            raise KernelThreadsError(
                f"cannot read /proc/{pid}: {err.strerror}", hint="see `ulimit -n`; it is tried again"
            ) from err
        if seen is not None:
            found[seen[0]] = seen[1]
    return found


def _unbound(pid: int) -> tuple[ThreadKey, KernelThread] | None:
    stat = _stat(pid)
    if not stat.is_kernel_thread:
        return None
    cpus = _allowed(pid)
    is_movable = not stat.is_bound and _is_of_nobody(pid)
    if not is_movable and len(cpus) <= 1:
        return None
    return ThreadKey(pid, stat.start_ticks), KernelThread(stat.name, cpus, is_movable)
