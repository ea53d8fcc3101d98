"""Kernel threads that are not bound to one CPU, and their affinities.

New threads don't inherit the affinity of kthreadd, and so have to be found again. Workers of unbound workqueues follow
/sys/devices/virtual/workqueue/cpumask. The kernel itself keeps all other threads off the CPUs of cpuset partitions.
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
    """Identity of a thread, with the start time because ids are reused."""

    pid: int
    start_ticks: int
    """Start time since boot, field 22 of /proc/PID/stat."""


class KernelThread(Struct, frozen=True):
    name: str
    cpus: CpuSet
    """Affinity, including offline CPUs."""
    is_movable: bool
    """Whether the thread can be moved. The kernel refuses to move workers and rescuers of workqueues (EINVAL)."""


def move_thread(thread: ThreadKey, cpus: CpuSet) -> str | None:
    """Set the affinity of a thread. Return the error, or None."""
    try:
        if _read_stat(thread.pid).start_ticks != thread.start_ticks:
            return os.strerror(errno.ESRCH)
        os.sched_setaffinity(thread.pid, cpus)
    except OSError as err:
        return os.strerror(err.errno or 0)
    return None


def find_unbound_threads(process_ids: Callable[[], Iterable[int]] = psutil.pids) -> dict[ThreadKey, KernelThread]:
    """Return the kernel threads that may run on more than one CPU or can be moved. Threads that end meanwhile are left out."""
    found = {}
    try:
        pids = tuple(process_ids())
    except OSError as err:
        raise KernelThreadsError(f"cannot list /proc: {err.strerror}", hint=_HINT) from err
    for pid in pids:
        try:
            stat = _read_stat(pid)
            if not stat.is_kernel_thread:
                continue
            # unlike sched_getaffinity(2), /proc/PID/status has offline CPUs, too
            cpus = parse_allowed_cpus(_read(pid, "status"))
            # a thread that works for a process, such as vhost for a virtual machine, is in the process's cgroup
            is_movable = not stat.is_bound and _read(pid, "cgroup").strip().endswith("0::/")
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as err:  # a thread that is left out would count as ended
            raise KernelThreadsError(f"cannot read /proc/{pid}: {err.strerror}", hint=_HINT) from err
        if is_movable or len(cpus) > 1:
            found[ThreadKey(pid, stat.start_ticks)] = KernelThread(stat.name, cpus, is_movable)
    return found


_HINT = "see `ulimit -n`; the agent lists the threads again at the next sync"


def _read_stat(pid: int) -> TaskStat:
    return parse_task_stat(_read(pid, "stat"))


def _read(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="backslashreplace")
