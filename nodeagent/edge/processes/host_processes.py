"""Processes and kernel threads of the host, with their CPU affinity and cgroups, read from /proc and by psutil."""

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from nodeagent.core.model.host_processes import HostThread
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.task_stat import TaskStat, parse_task_stat

_CUT_LENGTH = 15
"""Length to which the kernel shortens the names of processes (TASK_COMM_LEN)."""


class ProcessAffinity(Struct, frozen=True):
    pid: int
    name: str
    cpus: CpuSet
    """CPUs on which any thread of the process may run."""
    cgroup: str | None
    """Cgroup path below the cgroup v2 root, with a leading slash. None means that the process isn't in a v2 cgroup."""
    is_kernel_thread: bool


class ProcessScan(Struct, frozen=True):
    found: tuple[ProcessAffinity, ...]
    """The processes, ordered by pid."""
    hidden: tuple[int, ...]
    """PIDs of the processes that this user isn't allowed to inspect."""


def find_processes_on(cpus: CpuSet, *, excluding: Callable[[int], bool]) -> ProcessScan:
    """Find the processes that have a thread that may run on one of these CPUs. Processes that end during the search are left out.

    Args:
        cpus: the CPUs.
        excluding: function that returns whether to leave out the process with a certain PID.
    """
    found, hidden = [], []
    for pid in sorted(_list_ids("/proc")):
        if excluding(pid):
            continue
        try:
            process = _read_process(pid, cpus)
        except (ProcessLookupError, FileNotFoundError):
            continue
        except PermissionError:
            hidden.append(pid)
            continue
        if process is not None:
            found.append(process)
    return ProcessScan(tuple(found), tuple(hidden))


def find_caller_pids() -> frozenset[int]:
    """Return the PIDs of this process, of its ancestors in the same cgroup (shell, sudo), and of the other processes in its pipeline.

    The program that has started the session, such as sshd or cron, isn't included, because it is in another cgroup or has PID 1.
    """
    pid = os.getpid()
    ours = {pid}
    with contextlib.suppress(OSError):
        cgroup = _read_cgroup(pid)
        while (pid := _read_stat(pid).parent) > 1 and _read_cgroup(pid) == cgroup:
            ours.add(pid)
    for pid in _list_ids("/proc"):
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == os.getpgrp():
                ours.add(pid)
    return frozenset(ours)


def describe_threads(thread_ids: Iterable[int]) -> dict[int, HostThread]:
    """Describe threads by their IDs. Threads that have exited are left out."""
    found = {}
    for tid in thread_ids:
        with contextlib.suppress(OSError, IndexError, ValueError, StopIteration):
            status = dict(line.split(":\t", 1) for line in _read_proc(tid, "status").splitlines() if ":\t" in line)
            stat = _read_stat(tid)
            found[tid] = HostThread(
                pid=int(status["Tgid"]),
                name=status["Name"],
                cgroup=_read_cgroup(tid),
                is_kernel_thread=stat.is_kernel_thread,
                is_bound=stat.is_bound and status["Cpus_allowed_list"].isdecimal(),
            )
    return found


def find_runnable_threads(cpus: CpuSet) -> dict[int, tuple[int, ...]]:
    """Find the threads in state R (running or runnable) on these CPUs. Return their IDs by CPU; CPUs without such threads are left out."""
    found: dict[int, tuple[int, ...]] = {}
    for pid in _list_ids("/proc") if cpus else ():
        with contextlib.suppress(OSError):
            for tid in _list_ids(f"/proc/{pid}/task"):
                stat = _read_stat(tid)
                if stat.state == "R" and stat.cpu in cpus:
                    found[stat.cpu] = (*found.get(stat.cpu, ()), tid)
    return found


class LastRun(Struct, frozen=True):
    """CPU on which a thread last ran, and the thread's total run time."""

    cpu: int
    run_ns: int
    """Total run time of the thread on all CPUs since its start, in nanoseconds."""


def read_last_runs() -> dict[int, LastRun]:
    """Return the last CPU and the run time of each thread, by thread ID. Threads that exit during the reading are left out."""
    found = {}
    for pid in _list_ids("/proc"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            for tid in _list_ids(f"/proc/{pid}/task"):
                run_ns = int(_read_proc(tid, "schedstat").split()[0])
                found[tid] = LastRun(_read_stat(tid).cpu, run_ns)
    return found


def leave_cpus(cpus: CpuSet) -> None:
    """Remove CPUs from this process's affinity, so that it doesn't run there. If no CPU would be left, don't change the affinity."""
    others = CpuSet.from_ids(os.sched_getaffinity(0)) - cpus
    if others:
        os.sched_setaffinity(0, others)


def _read_process(pid: int, wanted: CpuSet) -> ProcessAffinity | None:
    """Read a process. None means that it is a zombie, or that no thread of it may run on the wanted CPUs."""
    stat, ids = _read_stat(pid), set[int]()
    for tid in _list_ids(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has exited, but its process has not
            ids |= os.sched_getaffinity(tid)
    cpus = CpuSet.from_ids(ids)
    if stat.is_dead or cpus.isdisjoint(wanted):
        return None
    return ProcessAffinity(pid, _find_name(pid, stat), cpus, _read_cgroup(pid), stat.is_kernel_thread)


def _find_name(pid: int, stat: TaskStat) -> str:
    """Return the name of a process. If the kernel has shortened it, take the full name from the command line."""
    if stat.is_kernel_thread or len(stat.name) < _CUT_LENGTH:
        return stat.name
    import psutil  # noqa: PLC0415 - few names are so long

    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name()
    return stat.name


def _list_ids(directory: str) -> list[int]:
    """Return the process IDs in /proc, or the thread IDs in a process's directory `task`."""
    with os.scandir(directory) as entries:
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]


def _read_stat(pid: int) -> TaskStat:
    return parse_task_stat(_read_proc(pid, "stat"))


def _read_cgroup(pid: int) -> str | None:
    for line in _read_proc(pid, "cgroup").splitlines():
        if line.startswith("0::"):  # the other lines are cgroup v1 hierarchies (cgroups(7))
            return line.removeprefix("0::")
    return None


def _read_proc(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="backslashreplace")
