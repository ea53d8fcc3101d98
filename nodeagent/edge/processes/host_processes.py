"""Which host processes may run where: affinities, cgroups and kernel threads, from psutil and /proc. Read-only; moves nothing."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
from msgspec import Struct

from nodeagent.core.model.host_processes import HostThread
from nodeagent.core.model.idset import CpuSet
from nodeagent.formats.kernel.task_stat import TaskStat, parse_task_stat


class ProcessAffinity(Struct, frozen=True):
    pid: int
    name: str
    cpus: CpuSet
    """CPUs that at least one of its threads may run on."""
    cgroup: str | None
    """Path below the cgroup v2 root, with its leading slash; None: it is in none."""
    is_kernel_thread: bool


class ProcessScan(Struct, frozen=True):
    found: tuple[ProcessAffinity, ...]
    """By pid."""
    hidden: tuple[int, ...]
    """Processes that we were not allowed to inspect: they may run there, too."""


def may_run_on(cpus: CpuSet, *, excluding: Callable[[int], bool]) -> ProcessScan:
    """List the processes with a thread that may run on one of these CPUs. Those that end in the meantime are left out.

    Args:
        cpus: the CPUs.
        excluding: whether a pid is expected there; it is then not even inspected.
    """
    found, hidden = [], []
    for pid in sorted(psutil.pids()):
        if excluding(pid):
            continue
        try:
            process = _look_at(pid)
        except (ProcessLookupError, FileNotFoundError, psutil.NoSuchProcess):
            continue
        except (PermissionError, psutil.AccessDenied):
            hidden.append(pid)
            continue
        if process is not None and not process.cpus.isdisjoint(cpus):
            found.append(process)
    return ProcessScan(tuple(found), tuple(hidden))


def of_caller() -> frozenset[int]:
    """Return this process, the processes it was called from (shell, sudo, session), and its neighbours in the pipeline: they end with it.

    What started the session, such as sshd or cron, is in another cgroup, or has pid 1, and stays the host's.
    """
    ours = {os.getpid()}
    with contextlib.suppress(OSError, psutil.Error):
        cgroup = _cgroup(os.getpid())
        for parent in psutil.Process().parents():
            if parent.pid == 1 or _cgroup(parent.pid) != cgroup:
                break
            ours.add(parent.pid)
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == os.getpgrp():
                ours.add(pid)
    return frozenset(ours)


def threads(tasks: Iterable[int]) -> dict[int, HostThread]:
    """Describe tasks by their ids; those that have ended are left out."""
    found = {}
    for task in tasks:
        with contextlib.suppress(OSError, IndexError, ValueError, StopIteration):
            found[task] = _thread(task)
    return found


def running_on(cpus: CpuSet) -> dict[int, tuple[int, ...]]:
    """Return the tasks that run at this moment on CPUs, or would if they had their turn; CPUs without any are left out."""
    found: dict[int, tuple[int, ...]] = {}
    for pid in psutil.pids() if cpus else ():
        with contextlib.suppress(OSError):
            for task in _threads(pid):
                stat = _stat(task)
                if stat.state == "R" and stat.cpu in cpus:
                    found[stat.cpu] = (*found.get(stat.cpu, ()), task)
    return found


def stay_off(cpus: CpuSet) -> None:
    """Keep this process off CPUs, if there are others for it."""
    others = CpuSet.from_ids(os.sched_getaffinity(0)) - cpus
    if others:
        os.sched_setaffinity(0, others)


def _thread(task: int) -> HostThread:
    status = dict(line.split(":\t", 1) for line in _proc_text(task, "status").splitlines() if ":\t" in line)
    stat = _stat(task)
    return HostThread(
        pid=int(status["Tgid"]),
        name=status["Name"],
        cgroup=_cgroup(task),
        is_kernel_thread=stat.is_kernel_thread,
        is_bound=stat.is_bound and status["Cpus_allowed_list"].isdecimal(),
    )


def _look_at(pid: int) -> ProcessAffinity | None:
    """Describe a process; None if it has ended and only waits for its parent."""
    stat = _stat(pid)
    if stat.is_dead:
        return None
    cpus = CpuSet()
    for thread in _threads(pid):
        with contextlib.suppress(ProcessLookupError):  # this thread ended; the process goes on
            cpus |= CpuSet.from_ids(os.sched_getaffinity(thread))
    return ProcessAffinity(pid, psutil.Process(pid).name(), cpus, _cgroup(pid), stat.is_kernel_thread)


def _threads(pid: int) -> Iterator[int]:
    with os.scandir(f"/proc/{pid}/task") as entries:
        yield from (int(entry.name) for entry in entries)


def _stat(pid: int) -> TaskStat:
    return parse_task_stat(_proc_text(pid, "stat"))


def _cgroup(pid: int) -> str | None:
    for line in _proc_text(pid, "cgroup").splitlines():
        if line.startswith("0::"):  # the others are hierarchies of version 1 (cgroups(7))
            return line.removeprefix("0::")
    return None


def _proc_text(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="backslashreplace")
